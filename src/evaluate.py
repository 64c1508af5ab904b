"""The model of a run, tested: python src/evaluate.py run=<run folder> [data=...] [onnx=model.onnx].

Prints accuracy, a table by class and one by client, and the confusion matrix.
"""

from fedshvr.cli import evaluate

if __name__ == "__main__":
    evaluate()
