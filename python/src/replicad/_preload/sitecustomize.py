"""In the process that restarts fork from: imports, and serves forks. In a forked process it makes way for the user's own ``sitecustomize``.

``replicad run`` puts this folder first into PYTHONPATH of that one process. No other process ever sees it.
"""

import os
import sys

if "REPLICAD_PRELOAD_SERVE" in os.environ:
    try:
        import replicad_preload  # type: ignore[import-not-found]

        replicad_preload.main(os.path.dirname(os.path.abspath(__file__)))  # it returns in forked processes alone
    except BaseException:  # the program must not run here: this process is no rank
        os._exit(70)
    sys.modules.pop(__name__, None)
    sys.modules.pop("replicad_preload", None)
    # What Python would have found without this folder. If it finds nothing, the ImportError is what `site` expects.
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
