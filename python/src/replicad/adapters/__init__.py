"""Sessions under loops that other people own. Each module is public as ``replicad.NAME``, imports its framework when it is asked for, and patches instances, never modules."""
