"""Inference methods, one file each: four pure functions around what the wall releases.

A method's file reads like its paper's algorithm and names the errata that it follows. It reaches for no records, no
ledger and no files: `tacit.wall` calls it, and `tacit.run` decides when.
"""
