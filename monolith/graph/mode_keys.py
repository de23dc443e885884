"""What a graph is built for; input functions, tasks and the estimator share these words.

Example:
    >>> ModeKeys.PREDICT
    'infer'
"""


class ModeKeys:
    """The purposes of a graph. Plain strings, as TensorFlow's estimators had them."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"
