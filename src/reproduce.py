"""Every table and figure of the paper in one command: python src/reproduce.py scale=laptop [options of train.py].

Runs what neither logs/ nor the committed results have, the cheap and important first; started again, it goes on.
--plan prints jobs and hours, by the runs that there are, and stops.
"""

from fedshvr.cli import reproduce

if __name__ == "__main__":
    reproduce()
