"""Runs: compose a config, train, test, write a result. The only package that knows Hydra, Lightning and W&B."""
