"""A training with minilearn that no kill can set back. Start it, kill it, start it again."""

import hashlib

import gymnasium
from minilearn import Trainer
from minilearn_unbroken import Checkpoints

trainer = Trainer(gymnasium.make("CartPole-v1"), callbacks=[Checkpoints("runs", job="minilearn", every=500)])
trainer.fit(5_000)
weights = trainer.policy.actor.tobytes() + trainer.policy.critic.tobytes()
print(f"{trainer.episodes} episodes, weights {hashlib.sha256(weights).hexdigest()[:16]}")
