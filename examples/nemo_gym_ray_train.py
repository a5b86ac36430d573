"""A tiny policy learns to use a tool in NeMo Gym, trained by Ray Train, and no kill can set it back.

The task is NeMo Gym's own `example_session_state_mgmt`: a counter in a session, and a tool that adds to it. The
policy sees what is missing and says how much to add, call by call, until it thinks that it is done; the reward is 1
if the counter is right then. It is served over HTTP, as a model server of NeMo Gym is, by the worker that trains it.

Start it, kill anything (the trainer, a server, the whole tree, in the middle of an episode), start it again with
the same command: it ends byte for byte as if nothing had happened, and asks the model for nothing twice.

The training runs in the Python that you start it with; the servers run in another one, that has NeMo Gym.
"""

import argparse
import hashlib
import json
import os
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import ray
import ray.train
import ray.train.torch
import torch
from torch import nn

import unbroken.nemo_gym
import unbroken.ray_train

parser = argparse.ArgumentParser()
parser.add_argument("--iterations", type=int, default=40)
parser.add_argument("--rows", type=int, default=16, help="episodes of an iteration")
parser.add_argument("--save-path", default="runs/nemo_gym")
parser.add_argument("--save-every", type=int, default=5, help="iterations between two saves")
parser.add_argument("--gym-python", default=".venv-gym/bin/python", help="a Python that has NeMo Gym")
parser.add_argument("--model-port", type=int, default=18765)
parser.add_argument("--seed", type=int, default=7)

VOCABULARY = (1, 2, 3, None)  # add so much; None: done
TURNS = 6


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, len(VOCABULARY))
        )

    def forward(self, seen):
        return torch.distributions.Categorical(logits=self.layers(seen))


def seen_by_policy(goal, added, turn):
    return torch.tensor([(goal - added) / 5, turn / TURNS])


def servers(directory, args):
    """The configuration of NeMo Gym: an agent, the server of the task, and where the model answers."""
    return unbroken.nemo_gym.Servers(
        {
            "counter": {
                "resources_servers": {
                    "example_session_state_mgmt": {"entrypoint": "app.py", "domain": "agent"},
                }
            },
            "agent": {
                "responses_api_agents": {
                    "simple_agent": {
                        "entrypoint": "app.py",
                        "max_steps": TURNS,
                        "resources_server": {"type": "resources_servers", "name": "counter"},
                        "model_server": {"type": "responses_api_models", "name": "policy_model"},
                    }
                }
            },
            "policy_model": {  # the trainer itself: Servers starts nothing for it
                "responses_api_models": {
                    "tiny_policy": {"entrypoint": "app.py", "host": "127.0.0.1", "port": args.model_port}
                }
            },
        },
        directory=directory,
        python=args.gym_python,
        external=["policy_model"],
    )


class ModelServer:
    """The policy as NeMo Gym asks for it: `POST /v1/responses`. What it draws depends on the rollout and the turn only."""

    def __init__(self, policy, *, port, seed, log):
        self.policy, self.seed, self.log = policy, seed, log
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                answer = json.dumps(outer.answer(request, self.headers["x-unbroken-rollout"])).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, request, rollout):
        task = json.loads(next(item["content"] for item in request["input"] if item.get("role") == "user"))
        calls = [item for item in request["input"] if item.get("type") == "function_call"]
        added = sum(json.loads(item["arguments"])["count"] for item in calls)
        with self.log.open("a") as log:
            log.write(f"{rollout} {len(calls)}\n")
        drawn = hashlib.sha256(f"{self.seed} {rollout} {len(calls)}".encode()).digest()
        with torch.no_grad():
            probabilities = self.policy(seen_by_policy(task["goal"], added, len(calls))).probs
        token = random.Random(drawn).choices(range(len(VOCABULARY)), probabilities.tolist())[0]
        kept = {
            "prompt_token_ids": [],
            "generation_token_ids": [token],
            "generation_log_probs": [float(probabilities[token].log())],
        }
        name = f"{len(calls)}"
        if VOCABULARY[token] is None:
            text = {"type": "output_text", "text": "done", "annotations": []}
            output = {
                "type": "message",
                "id": name,
                "role": "assistant",
                "status": "completed",
                "content": [text],
            }
        else:
            output = {
                "type": "function_call",
                "id": name,
                "call_id": name,
                "name": "increment_counter",
                "arguments": json.dumps({"count": VOCABULARY[token]}),
            }
        return {
            "id": name,
            "created_at": 0,
            "model": "tiny",
            "object": "response",
            "output": [output | kept],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
        }


def rows_of(iteration, args):
    """The tasks of an iteration, the same at every start."""
    draw = random.Random(f"{args.seed} {iteration}")
    rows = []
    for _ in range(args.rows):
        start, goal = draw.randrange(10), draw.randrange(1, 5)
        task = json.dumps({"goal": goal})
        rows.append(
            {
                "responses_create_params": {"input": [{"role": "user", "content": task}]},
                "initial_count": start,
                "expected_count": start + goal,
            }
        )
    return rows


def loss_of(policy, rollouts):
    """REINFORCE with the mean reward as its baseline, over the tokens that were generated.

    A rollout without a reward is left out: that its servers have lost it says nothing about the policy.
    """
    rollouts = [rollout for rollout in rollouts if rollout.outcome == "completed"]
    if not rollouts:
        raise RuntimeError("No rollout of this iteration has a reward: look at the servers, and start again.")
    rewards = torch.tensor([rollout.reward for rollout in rollouts])
    total = torch.zeros(())
    for rollout, advantage in zip(rollouts, rewards - rewards.mean(), strict=True):
        goal = rollout.row["expected_count"] - rollout.row["initial_count"]
        added = 0
        for turn, item in enumerate(
            o for o in rollout.response["response"]["output"] if "generation_token_ids" in o
        ):
            (token,) = item["generation_token_ids"]
            total = total - advantage * policy(seen_by_policy(goal, added, turn)).log_prob(
                torch.tensor(token)
            )
            added += VOCABULARY[token] or 0
    return total / len(rollouts), rewards.mean()


def train(config):
    args = argparse.Namespace(**config)
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    root = Path(args.root)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    with servers(root / "servers", args) as running:
        gym = unbroken.nemo_gym.Gym(running.addresses)
        ckpt = unbroken.ray_train.start(
            root, every=args.save_every, policy=policy, optimizer=optimizer, gym=gym
        )
        ModelServer(policy, port=args.model_port, seed=args.seed, log=root / "model_calls.txt")
        ckpt.vars.rewards = []
        for iteration in ckpt.steps(args.iterations):
            rollouts = gym.collect(rows_of(iteration, args), policy_version=iteration)
            loss, reward = loss_of(policy, rollouts)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ckpt.vars.rewards.append(float(reward))
            ckpt.report({"reward": float(reward)}, epoch=iteration, rollouts=(iteration + 1) * args.rows)
        weights = hashlib.sha256(
            b"".join(p.detach().numpy().tobytes() for p in policy.parameters())
        ).hexdigest()
        summary = {"weights": weights, "rewards": ckpt.vars.rewards}
        (root / "summary.json").write_text(json.dumps(summary))


def main():
    args = parser.parse_args()
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.1")
    root = Path(os.environ.get("UNBROKEN_ROOT") or args.save_path).absolute()
    root.mkdir(parents=True, exist_ok=True)
    ray.init(num_cpus=1, include_dashboard=False)
    result = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={
            **vars(args),
            "root": str(root),
            "gym_python": str(Path(args.gym_python).absolute()),
        },
        scaling_config=ray.train.ScalingConfig(num_workers=1),
        run_config=ray.train.RunConfig(name="nemo_gym", storage_path=str(root / "ray")),
    ).fit()
    print(f"reward {result.metrics['reward']:.2f}; {(root / 'summary.json').read_text()}")


if __name__ == "__main__":
    main()
