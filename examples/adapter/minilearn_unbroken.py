"""Unbroken for minilearn: `Trainer(env, callbacks=[Checkpoints("runs")]).fit(5_000)`."""

from minilearn import Callback

import unbroken

LOOSE = ("obs", "episodes", "reward", "newest")
"""What a trainer carries from one step to the next in attributes that are numbers or are set anew."""


class Loose:
    """Attributes of an object that come back by being set. `Run.track` takes whatever has these two methods."""

    def __init__(self, owner, names):
        self.owner, self.names = owner, names

    def capture(self):
        return {name: getattr(self.owner, name) for name in self.names}

    def restore(self, state):
        for name in self.names:
            setattr(self.owner, name, state[name])


class Checkpoints(Callback):
    """Saves and resumes a training. The last of the callbacks, so that it sees what the others have changed.

    Options are those of `unbroken.Run`: `every=1_000`, `keep_last=3`, …
    """

    def __init__(self, root, *, job="", **options):
        self.run = unbroken.Run(root, job=job, **options)
        self.steps = None

    def on_fit_begin(self, trainer, total):
        self.run.track(  # what is changed in place
            policy=trainer.policy,
            optimizer=trainer.optimizer,
            rng=trainer.rng,
            env=trainer.env,
            loose=Loose(trainer, LOOSE),
        )
        self.steps = self.run.steps(total)
        trainer.step = next(self.steps, total)  # restores; the total where the training was over

    def on_step(self, trainer):
        if trainer.step > self.run.report.step:  # not at the step that was gone on from: it is saved
            self.run.record(episodes=trainer.episodes - self.run.episodes, reward=trainer.newest)
            next(self.steps)  # saves if it is time

    def on_fit_end(self, trainer, error=None):
        if error is not None:
            self.run.__exit__(type(error), error, error.__traceback__)  # waits for what is being written
        elif self.steps is not None:
            if trainer.stop:
                self.run.stop()
            next(self.steps, None)  # saves the end
