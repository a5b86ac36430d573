"""What saving and restoring costs, beside the physical limits and beside other libraries, in one run.

`python -m benchmarks` (or `make bench`) measures everything and writes docs/benchmarks.md.
"""
