"""Sharded models: what torch.distributed.checkpoint writes and reads, over our store."""
