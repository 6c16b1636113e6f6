"""The rows about engine, codec, cost and process.

Rule: data only. A panel says what it shows, what good looks like, and which alerts belong to it.
Where it makes sense a panel has a line for each replica and one for all.
"""

from typing import Final

from deploy.grafana.panel import SPEECH, Panel, Query, quantile, quantile_of_all, rate

CUT_SHORT: Final = 'SELECTED, outcome=~"cancelled|disconnected"'

ENGINE: Final = (
    Panel(
        "Requests in the engine",
        "short",
        "Requests that hold a slot, and that wait for one. Good: nobody waits, since no more contexts have a "
        "turn than there are slots.",
        (
            Query("orpheus_engine_active{SELECTED}", "active, {{instance}}"),
            Query("orpheus_engine_waiting{SELECTED}", "waiting, {{instance}}"),
        ),
        ("OrpheusEngineOvercommitted",),
    ),
    Panel(
        "Tokens",
        "short",
        "Tokens a second, by replica and of all. Good: about 82 for each stream that is being spoken, when "
        "speech is generated as fast as it is heard; more while it runs ahead.",
        (
            Query(rate("orpheus_tokens_total")),
            Query(f"sum({rate('orpheus_tokens_total')})", "all"),
        ),
        ("OrpheusSpeechSlow",),
    ),
    Panel(
        "Engine's batch",
        "short",
        "Tokens in a step of the engine, and the requests in its latest step by its own account. Good: it "
        "follows the requests that hold a slot.",
        (
            Query(
                f"{rate('orpheus_engine_tokens')} / {rate('orpheus_engine_steps')}",
                "tokens a step, {{instance}}",
            ),
            Query("orpheus_engine_scheduled{SELECTED}", "scheduled, {{instance}}"),
        ),
        ("OrpheusEngineOvercommitted",),
    ),
    Panel(
        "Engine's step",
        "s",
        "What its latest step took. Good is below 1/82 s (12 ms): each stream gets a token a step and needs "
        "82 a second.",
        (Query("orpheus_engine_iteration_seconds{SELECTED}"),),
        ("OrpheusSpeechSlow",),
    ),
    Panel(
        "KV cache used",
        "percentunit",
        "Blocks in use over blocks there are. Good is below 90 % at full capacity.",
        (Query("orpheus_engine_kv_blocks_used{SELECTED} / orpheus_engine_kv_blocks{SELECTED}"),),
        ("OrpheusEngineOvercommitted",),
    ),
    Panel(
        "Waiting inside the engine",
        "short",
        "Requests that gave up their place in the KV cache, and that have a slot and still wait. Good is 0.",
        (
            Query("orpheus_engine_paused{SELECTED}", "paused, {{instance}}"),
            Query("orpheus_engine_queued_inside{SELECTED}", "queued, {{instance}}"),
        ),
        ("OrpheusEngineOvercommitted",),
    ),
    Panel(
        "Invalid tokens",
        "percentunit",
        "Share of the tokens that are out of range or out of turn. Good is 0: each costs a frame.",
        (Query(f"{rate('orpheus_invalid_tokens_total')} / {rate('orpheus_tokens_total')}"),),
        ("OrpheusInvalidTokens",),
    ),
    Panel(
        "Memory of the GPU",
        "bytes",
        "What the engine has taken. Good is a flat line.",
        (Query("orpheus_engine_gpu_bytes{SELECTED}"),),
    ),
    Panel(
        "Parts that are alive",
        "short",
        "1 for an engine or codec that can answer. Good is 1; at 0 the process is about to end.",
        (Query("orpheus_alive{SELECTED}", "{{part}}, {{instance}}"),),
        ("OrpheusEngineDead", "OrpheusCodecDead"),
    ),
)

CODEC: Final = (
    Panel(
        "Codec's batch",
        "short",
        "Streams in one step of the codec, on average. Good: it grows with the load while the time of a "
        "step hardly does.",
        (
            Query(
                f"{rate('orpheus_codec_batch_streams_sum')} / {rate('orpheus_codec_batch_streams_count')}"
            ),
        ),
        ("OrpheusCodecSaturated",),
    ),
    Panel(
        "Codec's batches, all replicas",
        "short",
        "How often a step had how many streams. Good is a band that widens upwards with the load.",
        (
            Query(
                "sum by (le) (increase(orpheus_codec_batch_streams_bucket{SELECTED}[$__rate_interval]))",
                "{{le}}",
            ),
        ),
        kind="heatmap",
    ),
    Panel(
        "Codec's step",
        "s",
        "The chosen quantile of the time that a step takes, and the step under way. Good is a few "
        "milliseconds on a GPU; above 0.085 s a frame takes longer than it sounds.",
        (
            quantile("orpheus_codec_step_seconds"),
            Query("orpheus_codec_busy_seconds{SELECTED}", "under way, {{instance}}"),
        ),
        ("OrpheusCodecStuck",),
    ),
    Panel(
        "Codec busy",
        "percentunit",
        "Share of the time that the codec's thread computes. Good is below 80 %.",
        (Query(rate("orpheus_codec_step_seconds_sum")),),
        ("OrpheusCodecSaturated",),
    ),
    Panel(
        "Streams in the codec",
        "short",
        "Segments that hold a slot of the codec. Good: as many as are being spoken.",
        (
            Query("orpheus_codec_streams{SELECTED}"),
            Query("sum(orpheus_codec_streams{SELECTED})", "all"),
        ),
    ),
)

BARGE_IN: Final = (
    Panel(
        "Cancelled",
        "percentunit",
        "Share of the contexts that were cancelled or lost their client. Good is as often as people "
        "interrupt.",
        (
            Query(
                f"sum by (instance) ({rate('orpheus_contexts_total', CUT_SHORT)})"
                f" / sum by (instance) ({rate('orpheus_contexts_total')})"
            ),
        ),
        ("OrpheusOrphanedAudio",),
    ),
    Panel(
        "Cancelling takes",
        "s",
        "The chosen quantile of the time from `cancel` to the engine's slot being free. Good is two steps "
        "of the engine.",
        (quantile("orpheus_cancel_seconds"), quantile_of_all("orpheus_cancel_seconds")),
    ),
    Panel(
        "Orphaned audio",
        "percentunit",
        "Share of the audio generated that nobody heard. Good is below 30 %; a smaller `lead_ms` and "
        "shorter sentences make it less.",
        (
            Query(
                f"{rate('orpheus_orphaned_audio_seconds_total')}"
                f" / ({rate('orpheus_frames_total')} * 2048 / 24000)"
            ),
            Query(
                f"sum({rate('orpheus_orphaned_audio_seconds_total')})"
                f" / (sum({rate('orpheus_frames_total')}) * 2048 / 24000)",
                "all",
            ),
        ),
        ("OrpheusOrphanedAudio",),
    ),
)

COST: Final = (
    Panel(
        "Cost of an hour of speech",
        "currencyUSD",
        "What replicas cost in an hour over the hours of speech they make in it; and what it would be with "
        "every socket taken and the talk share that was set. Good: `now` near `full`.",
        (
            Query(
                "$price * count by (instance) (orpheus_capacity{SELECTED})"
                f" / sum by (instance) ({rate('orpheus_audio_seconds_total')})"
            ),
            Query(f"$price * count(orpheus_capacity{{SELECTED}}) / {SPEECH}", "now, all"),
            Query(
                # More sockets than slots make no more speech than the slots do.
                "$price * count(orpheus_capacity{SELECTED}) / sum("
                "orpheus_sockets_admitted{SELECTED} * $talk < orpheus_capacity{SELECTED}"
                " or orpheus_capacity{SELECTED})",
                "full, all",
            ),
        ),
        ("OrpheusOrphanedAudio",),
    ),
    Panel(
        "Cost of an hour of conversation",
        "currencyUSD",
        "What replicas cost in an hour over their open sockets; and over all that may be open. Good: `now` "
        "near `full`.",
        (
            Query(
                "$price * count(orpheus_capacity{SELECTED}) / sum(orpheus_sockets{SELECTED})",
                "now, all",
            ),
            Query(
                "$price * count(orpheus_capacity{SELECTED}) / sum(orpheus_sockets_admitted{SELECTED})",
                "full, all",
            ),
        ),
    ),
    Panel(
        "Talk share",
        "percentunit",
        "Seconds of speech sent for a second of an open socket. Good is the share that was set, or the "
        "costs at full capacity are not what they seem.",
        (
            Query(
                f"{rate('orpheus_audio_seconds_total')} / avg_over_time(orpheus_sockets{{SELECTED}}[$__rate_interval])"
            ),
            Query("vector($talk)", "as set"),
        ),
    ),
)

PROCESS: Final = (
    Panel(
        "Memory",
        "bytes",
        "Resident memory of the server's process. Good is flat after the first minutes.",
        (Query("process_resident_memory_bytes{SELECTED}"),),
        ("OrpheusRestarting",),
    ),
    Panel(
        "Processor cores",
        "short",
        "Cores that the server's process keeps busy. Good is well below what it was given: one of them is "
        "the event loop, and there is only one.",
        (Query(rate("process_cpu_seconds_total")),),
        ("OrpheusUnderruns",),
    ),
    Panel(
        "Event loop late",
        "s",
        "The chosen quantile of how late the event loop is, and how long it has stood still by now. Good is "
        "below 0.02 s: by so much everything else comes late.",
        (
            quantile("orpheus_event_loop_late_seconds"),
            Query("orpheus_event_loop_stopped_seconds{SELECTED}", "by now, {{instance}}"),
        ),
        ("OrpheusUnderruns",),
    ),
    Panel(
        "Tasks",
        "short",
        "Tasks of the event loop. Good: a few for each socket, and as many as before once they have left.",
        (Query("orpheus_tasks{SELECTED}"),),
    ),
    Panel(
        "Log lines dropped",
        "short",
        "Lines of the log in a second that nobody will see. Good is none: whoever reads the log keeps up, and "
        "its disk has space.",
        (Query(rate("orpheus_log_lines_dropped_total")),),
    ),
    Panel(
        "Descriptors used",
        "percentunit",
        "Open files and sockets over what the process may open. Good is below 80 % at full capacity.",
        (Query("process_open_fds{SELECTED} / process_max_fds{SELECTED}"),),
    ),
    Panel(
        "Up for",
        "s",
        "Time since the process started. Good is a line that falls only when you deploy.",
        (Query("time() - process_start_time_seconds{SELECTED}"),),
        ("OrpheusRestarting", "OrpheusTargetMissing"),
    ),
)

ROWS: Final = {
    "Engine": ENGINE,
    "Codec": CODEC,
    "Barge-in": BARGE_IN,
    "Cost": COST,
    "Process": PROCESS,
}
