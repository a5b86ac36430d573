"""A policy learns in NeMo Gym how much to add to a counter. Kill it, or a server, at any moment and start it again."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

import unbroken
from unbroken.nemo_gym import Gym, Servers

CONFIG = json.loads("""{
  "counter": {"resources_servers": {"example_session_state_mgmt": {"entrypoint": "app.py", "domain": "agent"}}},
  "agent": {"responses_api_agents": {"simple_agent": {
    "entrypoint": "app.py",
    "resources_server": {"type": "resources_servers", "name": "counter"},
    "model_server": {"type": "responses_api_models", "name": "policy_model"}}}},
  "policy_model": {"responses_api_models": {"own": {"entrypoint": "app.py", "host": "127.0.0.1", "port": 18766}}}
}""")
TASK = {"input": [{"role": "user", "content": "add 2"}]}
ROWS = [{"responses_create_params": TASK, "initial_count": 1, "expected_count": 3}] * 8
scores = np.zeros(4)  # the policy: how good it is to add 0, 1, 2 or 3


class Model(BaseHTTPRequestHandler):
    """Serves the policy to the agents. What it draws depends on the rollout alone, not on who asks first."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = {"id": "1", "type": "message", "role": "assistant", "status": "completed", "content": []}
        if not any(item.get("type") == "function_call" for item in request["input"]):
            seed = hashlib.sha256(self.headers["x-unbroken-rollout"].encode()).digest()
            chances = np.exp(scores) / np.exp(scores).sum()
            count = int(np.random.default_rng(list(seed)).choice(4, p=chances))
            said = {"id": "0", "type": "function_call", "call_id": "0", "name": "increment_counter"}
            said["arguments"] = json.dumps({"count": count})
        more = {"parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
        answer = {"id": said["id"], "created_at": 0, "model": "own", "object": "response", "output": [said]}
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({**answer, **more}).encode())

    def log_message(self, *_):
        pass


threading.Thread(target=ThreadingHTTPServer(("127.0.0.1", 18766), Model).serve_forever, daemon=True).start()
python = ".venv-gym/bin/python"  # which has NeMo Gym
with Servers(CONFIG, directory="runs/servers", python=python, external=["policy_model"]) as servers:
    gym = Gym(servers.addresses)
    run = unbroken.Run("runs", job="nemo_gym", every=1)
    run.track(scores=scores, gym=gym)
    for step in run.steps(20):  # in all, over every start
        for rollout in gym.collect(ROWS, policy_version=step):
            if rollout.outcome == "completed":  # one that was lost says nothing about the policy
                added = json.loads(rollout.response["response"]["output"][0]["arguments"])["count"]
                scores += 0.3 * (rollout.reward - 0.25) * (np.arange(4) == added)
print(f"best is to add {scores.argmax()}, scores {hashlib.sha256(scores.tobytes()).hexdigest()[:16]}")
