"""The adapter of PyTorch Lightning. What people use of it is in `unbroken.lightning`."""
