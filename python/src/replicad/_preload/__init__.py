"""A folder for PYTHONPATH of the process that restarts fork from: its ``sitecustomize`` takes over before the program begins. See D116."""
