"""A small training library, as somebody may have written it: actor and critic, linear, without any thought of checkpoints."""

import numpy as np


class Callback:
    """What a trainer calls. `on_step` comes at the top of a step, before anything of it is done."""

    def on_fit_begin(self, trainer, total):
        pass

    def on_step(self, trainer):
        pass

    def on_fit_end(self, trainer, error=None):
        pass


class Policy:
    def __init__(self, inputs, actions, seed):
        draw = np.random.default_rng(seed)
        self.actor = draw.normal(0, 0.1, (actions, inputs))
        self.critic = np.zeros(inputs)

    def chances(self, obs):
        logits = self.actor @ obs
        chances = np.exp(logits - logits.max())
        return chances / chances.sum()


class Momentum:
    """Adds to parameters what it is given, and a part of what it added before."""

    def __init__(self, rate, keep=0.9):
        self.rate, self.keep = rate, keep
        self.speeds = {}

    def step(self, name, parameter, gradient):
        speed = self.speeds.setdefault(name, np.zeros_like(parameter))
        speed *= self.keep
        speed += self.rate * gradient
        parameter += speed


class Trainer:
    """`Trainer(env).fit(5_000)` plays and learns, one step of the environment at a time."""

    def __init__(self, env, *, seed=0, callbacks=()):
        self.env, self.callbacks = env, list(callbacks)
        self.policy = Policy(env.observation_space.shape[0], env.action_space.n, seed)
        self.optimizer = Momentum(0.003)
        self.rng = np.random.default_rng(seed)
        self.obs, _ = env.reset(seed=seed)
        self.step, self.episodes, self.reward, self.newest = 0, 0, 0.0, 0.0
        self.stop = False

    def fit(self, total):
        error = None
        try:
            for callback in self.callbacks:
                callback.on_fit_begin(self, total)
            while self.step < total and not self.stop:
                for callback in self.callbacks:
                    callback.on_step(self)
                self.play()
                self.step += 1
        except BaseException as caught:
            error = caught
            raise
        finally:
            for callback in self.callbacks:
                callback.on_fit_end(self, error)

    def play(self):
        obs, chances = self.obs, self.policy.chances(self.obs)
        action = self.rng.choice(len(chances), p=chances)
        self.obs, reward, terminated, truncated, _ = self.env.step(int(action))
        self.reward += float(reward)
        value, following = self.policy.critic @ obs, self.policy.critic @ self.obs
        surprise = reward + 0.99 * following * (not terminated) - value
        self.optimizer.step("critic", self.policy.critic, surprise * obs)
        self.optimizer.step(
            "actor",
            self.policy.actor,
            surprise * np.outer((np.arange(len(chances)) == action) - chances, obs),
        )
        if terminated or truncated:
            self.episodes, self.newest, self.reward = self.episodes + 1, self.reward, 0.0
            self.obs, _ = self.env.reset()
