"""What comes out of a fit, and what is made of it: posteriors, effects, calibration, topics, plots and reports.

Everything here is post-processing of what was released, or of public records. Nothing here reads private records or
charges a ledger; what does belongs to `tacit.run`.
"""
