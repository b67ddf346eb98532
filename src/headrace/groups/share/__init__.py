"""Share groups (KIP-932): members share partitions, and each record is handed out, locked and acknowledged by itself.

`deliveries` is what a partition's leader keeps for one group: which records are out, and what became of them.
"""
