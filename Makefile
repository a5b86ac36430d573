# make demo     train, kill, resume and compare: about two minutes (SEED=7 repeats the moments of a demo)
# make test     all tests (those of NeMo Gym in .venv-gym, which wants Python 3.12)
# make exactness  every proof by killing there is: the matrix, into docs/exactness.md, and then the tests: hours
#               (ONLY='ppo/*' proves some cells of the matrix, and puts them into the page)
# make torture  more than ten thousand faults, each with a verified recovery, into docs/torture.md: about six minutes
#               (ONLY=damage does those kinds that hold the word, and prints them)
# make fuzz     more than a million inputs that nobody wrote, over all decoders: a few minutes; CPython 3.11
#               (ONLY=pickle feeds one decoder, SEED=7 tries other inputs)
# make package  the sdist and the wheel in dist/, installed into a new environment, trained and killed there: minutes
# make check    lint, types, layering
# make docs     the documentation site, into build/site; a warning is an error
# make bench    peers and Unbroken side by side, into docs/benchmarks.md: about 24 minutes
#               (ONLY=a,c measures two parts and prints them)
# make coverage branch coverage of the core
# make clean    remove what these made

.PHONY: demo test exactness torture fuzz package check docs coverage bench clean

demo:
	@scripts/install demo
	@DEMO_SEED=$(SEED) .venv/bin/python -m demo

test:
	@scripts/test

exactness:
	@scripts/exactness $(if $(ONLY),--only '$(ONLY)' --merge)
	$(if $(ONLY),,@scripts/test -m exactness)

torture:
	@scripts/torture $(if $(ONLY),--only '$(ONLY)')

fuzz:
	@scripts/fuzz $(if $(ONLY),--only $(ONLY)) $(if $(SEED),--seed $(SEED))

package:
	@scripts/package

check:
	@scripts/check

docs:
	@scripts/docs

coverage:
	@scripts/coverage

bench:
	@scripts/bench $(if $(ONLY),--only $(ONLY))

clean:
	rm -rf .venv .venv-gym .tools demo/out build dist .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis tests/nemo_gym/.pytest_cache
	find src tests demo docsite examples benchmarks exactness fuzz torture -name __pycache__ -prune -exec rm -rf {} +
