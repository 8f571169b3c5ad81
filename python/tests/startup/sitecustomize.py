"""For commands that have this folder on their path: all their processes import torch with a stand-in for its compiler. See standin.py."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import standin  # isort: skip

del sys.path[0]
sys.meta_path.insert(0, standin.Later())
