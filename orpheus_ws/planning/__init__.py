"""What a GPU can be expected to serve, before anything was measured on it. Pure.

Rule: arithmetic from figures with a source (`profiles`), in seconds, bytes, ids and streams; nothing
here measures, and whoever shows a result says that it is arithmetic. What a machine really does,
`orpheus-ws calibrate` finds out. `memory` says how many streams fit, `steps` how many stay in real
time, `cost` what an hour of them comes to; `docs/capacity.md` derives all of it.
"""
