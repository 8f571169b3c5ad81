"""The rank below a session: the C client, its threads, and what it says to the daemon and to other ranks. Nothing here imports torch."""
