"""The proof by killing for algorithms × environments × wrappers, and the page that tells its outcome.

`python -m exactness` (or `make exactness`) writes docs/exactness.md. See `oracle` for what one proof is.
"""
