"""`writer="process"` with environments in processes of their own, which outlive the training that forked them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.engine.children import ended, holders_of_memory
from unbroken.repo.lock import read_lease
from unbroken.repo.repository import Repository

SCRIPT = """
import os, signal, sys
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv
from unbroken.sb3 import CheckpointCallback

class KillWhileItSaves(BaseCallback):
    def _on_step(self):
        engine = ours._session._engine
        if self.n_calls == 1:
            os.kill(engine._companion.pid, signal.SIGSTOP)
        elif engine._writer.busy:
            print(self.num_timesteps, *(process.pid for process in env.processes), flush=True)
            os.kill(engine._companion.pid, signal.SIGCONT)
            os.kill(os.getpid(), signal.SIGKILL)
        return True

env = make_vec_env("Pendulum-v1", n_envs=2, seed=1, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"})
model = PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=1, device="cpu")
ours = CheckpointCallback(save_path=sys.argv[1], name_prefix="run", every=40, writer="process")
model.learn(400, callback=[ours, KillWhileItSaves()])
"""


def test_forked_workers_do_not_keep_it_from_ending_nor_its_memory(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with output.open("wb") as out:
        done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], check=False, stdout=out)
    assert done.returncode == -signal.SIGKILL
    step, *workers = map(int, output.read_text().split())
    try:
        repository = Repository.open(tmp_path, "run")
        lease = read_lease(repository.store)
        assert lease is not None
        assert lease.companion is not None
        assert ended(lease.companion.pid)
        assert any(Path(f"/proc/{pid}").exists() for pid in workers), "else this shows nothing"
        assert not holders_of_memory().keys() & set(workers)
        assert 40 <= repository.commits()[0].step <= step
    finally:
        for pid in workers:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)
