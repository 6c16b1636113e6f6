"""How many streams this machine serves in real time, found out by serving them.

    calibration = Calibration(settings, show)
    streams = calibration.run()

Rule: what counts was measured from outside, by clients of a server as it is served. `search` says which
number to try, `probe` what a number has to hold, `server` runs the server, `run` all of it, and `record`
writes what was confirmed.
"""
