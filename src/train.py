"""Train one federation: python src/train.py experiment=mnist_noniid algorithm=fed_shvr scale=laptop.

Compose the configuration, instantiate its parts, fit, and leave a summary in the run folder.
"""

from fedshvr.cli import train

if __name__ == "__main__":
    train()
