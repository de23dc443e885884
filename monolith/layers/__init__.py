"""The few dense layers that ranking models need, without Keras.

A layer is an object that is called on tensors. Its weights are made by the first call in a graph,
with `tf.compat.v1.get_variable`, so partitioners and variable creators of the surrounding scope
apply; every later call in that graph uses the same weights.
"""

from monolith.layers.base import Layer
from monolith.layers.cross_net import CrossNet
from monolith.layers.dense import Dense
from monolith.layers.dropout import Dropout
from monolith.layers.fm import FM
from monolith.layers.mlp import MLP
from monolith.layers.mmoe import MMoE

__all__ = ["FM", "MLP", "CrossNet", "Dense", "Dropout", "Layer", "MMoE"]
