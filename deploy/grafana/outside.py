"""The rows about what listeners and clients meet.

Rule: data only. A panel says what it shows, what good looks like, and which alerts belong to it.
Where it makes sense a panel has a line for each replica and one for all.
"""

from typing import Final

from deploy.grafana.panel import (
    OBJECTIVE,
    SPEECH,
    Panel,
    Query,
    admitting,
    quantile,
    quantile_of_all,
    rate,
)

AT_A_GLANCE: Final = (
    Panel(
        "Capacity used",
        "percentunit",
        "Open sockets over those admitted, and slots of the engine in use over all, as a mean of 5 minutes; "
        "of the replicas that are not draining. Good is both below 85 %: the rest is what one lost replica "
        "leaves for the others to take over.",
        (
            Query(
                f"{admitting('orpheus_sockets{SELECTED}')}"
                f" / {admitting('orpheus_sockets_admitted{SELECTED}')}",
                "sockets",
            ),
            Query(
                f"{admitting('avg_over_time(orpheus_slots_taken{SELECTED}[5m])')}"
                f" / {admitting('orpheus_capacity{SELECTED}')}",
                "slots",
            ),
        ),
        ("OrpheusCapacityNearlyUsed",),
        "stat",
        4,
    ),
    Panel(
        "Replicas",
        "short",
        "Replicas that answer scrapes. Good is as many as were deployed.",
        (Query("count(orpheus_capacity{SELECTED})", "up"),),
        ("OrpheusNoReplica", "OrpheusTargetMissing"),
        "stat",
        4,
    ),
    Panel(
        "First byte, p99",
        "s",
        "Time from the message that completes the first sentence to the first audio sent, for the slowest "
        "one in 100 of the last 5 minutes. Good is at most the objective, 0.15 s unless it was changed.",
        (
            Query(
                "histogram_quantile(0.99, sum by (le)"
                " (rate(orpheus_time_to_first_byte_seconds_bucket{SELECTED}[5m])))",
                "p99",
            ),
        ),
        ("OrpheusFirstByteLate",),
        "stat",
        4,
    ),
    Panel(
        "Underruns per hour of speech",
        "short",
        "How often a listener's player ran dry, in an hour of speech. Good is 0.",
        (
            Query(
                "3600 * sum(rate(orpheus_underruns_total{SELECTED}[5m]))"
                " / sum(rate(orpheus_audio_seconds_total{SELECTED}[5m]))",
                "underruns",
            ),
        ),
        ("OrpheusUnderruns",),
        "stat",
        4,
    ),
    Panel(
        "Utterances that failed",
        "percentunit",
        "Share of the contexts of the last 5 minutes that ended with an error of the server. Good is 0; "
        "what a client cancels or drops does not count.",
        (
            Query(
                'sum(rate(orpheus_contexts_total{SELECTED, outcome="failed"}[5m]))'
                " / sum(rate(orpheus_contexts_total{SELECTED}[5m]))",
                "failed",
            ),
        ),
        ("OrpheusContextsFailing",),
        "stat",
        4,
    ),
    Panel(
        "An hour of speech costs",
        "currencyUSD",
        "What all selected replicas cost in an hour, over the hours of speech they make in it. The price is "
        "the dashboard's variable. Good is near what a full replica costs, in the row Cost.",
        (Query(f"$price * count(orpheus_capacity{{SELECTED}}) / {SPEECH}", "now"),),
        ("OrpheusOrphanedAudio",),
        "stat",
        4,
    ),
    Panel(
        "Alerts",
        "short",
        "Alerts of this server that are pending or firing. Good is an empty table. The runbook has a "
        "paragraph for each.",
        (Query('ALERTS{alertname=~"Orpheus.*"}', "{{alertname}}"),),
        kind="alerts",
        width=24,
    ),
)

CAPACITY: Final = (
    Panel(
        "Streams against capacity",
        "short",
        "Sockets that are open and that may be, slots of the engine that are in use and that there are, of "
        "all selected replicas. Good: both stay below their limit, and slots are a steady share of sockets.",
        (
            Query("sum(orpheus_sockets_admitted{SELECTED})", "sockets admitted"),
            Query("sum(orpheus_sockets{SELECTED})", "sockets"),
            Query("sum(orpheus_capacity{SELECTED})", "capacity"),
            Query("sum(orpheus_slots_taken{SELECTED})", "slots taken"),
        ),
        ("OrpheusCapacityNearlyUsed",),
        width=12,
    ),
    Panel(
        "Capacity used, by replica",
        "percentunit",
        "Open sockets over those admitted. Good: the lines lie close together, as least connections makes "
        "them. One at 100 % while others have room means that something pins clients to it.",
        (Query("orpheus_sockets{SELECTED} / orpheus_sockets_admitted{SELECTED}"),),
        ("OrpheusCapacityNearlyUsed",),
        width=12,
    ),
    Panel(
        "Waiting for their turn",
        "short",
        "Contexts that wait for a slot of the engine, where more sockets are admitted than it has slots. "
        "Good is 0, or peaks that last seconds.",
        (
            Query("orpheus_contexts_awaiting_turn{SELECTED}"),
            Query("sum(orpheus_contexts_awaiting_turn{SELECTED})", "all"),
        ),
        ("OrpheusTurnsAwaited",),
    ),
    Panel(
        "Turns missed",
        "percentunit",
        "Share of the contexts that were refused because no slot came free in time. Good is 0: their "
        "listeners hear nothing.",
        (
            Query(
                f"sum by (instance) ({rate('orpheus_turns_missed_total')})"
                f" / sum by (instance) ({rate('orpheus_contexts_total')})"
            ),
        ),
        ("OrpheusTurnsMissed",),
    ),
    Panel(
        "Where the capacity comes from",
        "short",
        "Replicas by how their capacity is known, and replicas whose engine is simulated. Good: all are "
        "`measured`, and none is simulated.",
        (
            Query("sum by (source) (orpheus_capacity_source{SELECTED})", "{{source}}"),
            Query("sum(orpheus_engine_simulated{SELECTED}) or vector(0)", "engine simulated"),
        ),
        ("OrpheusCapacityNotMeasured", "OrpheusEngineSimulated"),
    ),
    Panel(
        "Upgrades refused",
        "reqps",
        "Refused handshakes a second, by reason. Good is 0; `draining` shows during a rolling update and "
        "does no harm behind a proxy that tries another replica.",
        (Query(f"sum by (reason) ({rate('orpheus_handshakes_refused_total')})", "{{reason}}"),),
        ("OrpheusHandshakesRefused", "OrpheusHandshakesRejected"),
    ),
    Panel(
        "Sockets closed",
        "reqps",
        "Closed sockets a second, by the code of whoever closed first. Good: 1000 and 1001, and 1012 during "
        "an update. 1006 is a lost connection, 1008 a client that did not read, 1011 a dead engine or codec.",
        (Query(f"sum by (code) ({rate('orpheus_socket_closes_total')})", "{{code}}"),),
        ("OrpheusSlowConsumers",),
    ),
    Panel(
        "Limits of keys",
        "reqps",
        "What is refused a second for a limit of its key, by key and limit. Good is what you have agreed on "
        "with whoever has the key; nobody else is held up by it.",
        (Query(f"sum by (key, limit) ({rate('orpheus_key_limited_total')})", "{{key}} {{limit}}"),),
    ),
    Panel(
        "Text by key",
        "short",
        "Characters of text a second, by key: who uses the capacity. Good is whatever you expect of "
        "each; a key that suddenly sends far more may be in other hands.",
        (Query(f"sum by (key) ({rate('orpheus_key_characters_total')})", "{{key}}"),),
    ),
    Panel(
        "Files read again",
        "short",
        "Replicas whose keys or certificate have changed and cannot be read, and how often a second they were "
        "read again. Good is 0 failed; until then what was read before stays in use.",
        (
            Query("sum by (what) (orpheus_reload_failed{SELECTED})", "{{what}} as before"),
            Query(
                f"sum by (what, outcome) ({rate('orpheus_reloads_total')})", "{{what}} {{outcome}}"
            ),
        ),
        ("OrpheusReloadFailed",),
    ),
    Panel(
        "Certificate",
        "s",
        "How long clients still take each certificate. Good is more than 14 days, or what is left at most "
        "when yours is renewed; a replica that falls behind the others has not read its new one.",
        (Query("orpheus_certificate_expires_timestamp_seconds{SELECTED} - time()"),),
        ("OrpheusCertificateExpires",),
    ),
    Panel(
        "Draining",
        "s",
        "How long a replica has been draining, and how long it may. Good is 0, or a line that ends below "
        "the limit.",
        (
            Query("orpheus_draining_seconds{SELECTED}"),
            Query("max(orpheus_drain_limit_seconds{SELECTED})", "limit"),
        ),
        ("OrpheusDrainStuck",),
    ),
)

LATENCY: Final = (
    Panel(
        "Time to first byte",
        "s",
        "How many utterances got their first audio after how long. Good is one dark band below the "
        "objective; a second band above it is a queue or a stall.",
        (
            Query(
                "sum by (le) (increase(orpheus_time_to_first_byte_seconds_bucket{SELECTED}[$__rate_interval]))",
                "{{le}}",
            ),
        ),
        ("OrpheusFirstByteLate",),
        "heatmap",
        12,
    ),
    Panel(
        "Time to first byte, quantiles",
        "s",
        "Half, 90, 95 and 99 in 100 are faster than the line, over all selected replicas. Good: p99 below "
        "the objective.",
        (
            *(
                Query(
                    f"histogram_quantile({share}, sum by (le)"
                    f" ({rate('orpheus_time_to_first_byte_seconds_bucket')}))",
                    f"p{share * 100:g}",
                )
                for share in (0.5, 0.9, 0.95, 0.99)
            ),
            OBJECTIVE,
        ),
        ("OrpheusFirstByteLate",),
        width=12,
    ),
    Panel(
        "Time to first byte, by replica",
        "s",
        "The chosen quantile. Good: close together and below the objective; one line above the others is a "
        "sick replica.",
        (quantile("orpheus_time_to_first_byte_seconds"), OBJECTIVE),
        ("OrpheusFirstByteLate",),
    ),
    Panel(
        "Time to first audio",
        "s",
        "The chosen quantile of the time to the first sample that can be heard. Good is within 50 ms of the "
        "first byte: more silence than that is trimmed.",
        (
            quantile("orpheus_time_to_first_audio_seconds"),
            quantile_of_all("orpheus_time_to_first_audio_seconds"),
        ),
    ),
    Panel(
        "Time to first sentence",
        "s",
        "The chosen quantile of the time until the last sample of the first segment was sent. It may take "
        "as long as the sentence lasts less the lead; good is a steady line.",
        (
            quantile("orpheus_time_to_first_sentence_seconds"),
            quantile_of_all("orpheus_time_to_first_sentence_seconds"),
        ),
    ),
    Panel(
        "Where the first byte's time goes",
        "s",
        "The chosen quantile of its three parts: until the context's turn, until the engine's first token, "
        "and in the codec. Good: queue and codec are a few milliseconds, the engine has nearly all.",
        (
            quantile_of_all("orpheus_queue_seconds", "queue"),
            quantile_of_all("orpheus_engine_first_token_seconds", "engine"),
            quantile_of_all("orpheus_codec_wait_seconds", "codec"),
        ),
        ("OrpheusFirstByteLate",),
        width=12,
    ),
    Panel(
        "What hangs",
        "short",
        "Contexts without a first byte and segments without a token for over 1 s. Good is 0.",
        (
            Query("orpheus_contexts_waiting_over_1s{SELECTED}", "waiting, {{instance}}"),
            Query("orpheus_segments_stalled_over_1s{SELECTED}", "stalled, {{instance}}"),
        ),
        ("OrpheusContextsWaiting", "OrpheusSegmentsStalled"),
        width=12,
    ),
)

SPOKEN: Final = (
    Panel(
        "Underruns",
        "short",
        "How often the listeners' players ran dry, in an hour of speech, by replica and of all. Good is 0.",
        (
            Query(
                f"3600 * {rate('orpheus_underruns_total')} / {rate('orpheus_audio_seconds_total')}"
            ),
            Query(f"3600 * sum({rate('orpheus_underruns_total')}) / {SPEECH}", "all"),
        ),
        ("OrpheusUnderruns",),
    ),
    Panel(
        "Silence by underruns",
        "percentunit",
        "Seconds for which players were dry, over seconds of speech. Good is 0.",
        (
            Query(
                f"{rate('orpheus_underrun_seconds_total')} / {rate('orpheus_audio_seconds_total')}"
            ),
            Query(f"sum({rate('orpheus_underrun_seconds_total')}) / {SPEECH}", "all"),
        ),
        ("OrpheusUnderruns",),
    ),
    Panel(
        "Gaps between chunks",
        "s",
        "The chosen quantile of the time between two chunks of a segment. A frame is 0.085 s of sound; good "
        "is around that, or more where listeners have a lead and get several frames at once.",
        (quantile("orpheus_chunk_gap_seconds"), quantile_of_all("orpheus_chunk_gap_seconds")),
        ("OrpheusUnderruns",),
    ),
    Panel(
        "Real-time factor, slowest 5 %",
        "short",
        "Seconds of audio over seconds of generating them; 1 segment in 20 is slower than the line. Good is "
        "above 1.",
        (
            Query(
                "histogram_quantile(0.05, sum by (instance, le)"
                f" ({rate('orpheus_real_time_factor_bucket')}))"
            ),
        ),
        ("OrpheusSpeechSlow",),
    ),
    Panel(
        "Live contexts",
        "short",
        "Contexts by state. Good: next to none starved; that many speak as the engine has requests.",
        (Query("sum by (state) (orpheus_live_contexts{SELECTED})", "{{state}}"),),
        ("OrpheusContextsWaiting",),
    ),
    Panel(
        "Contexts ended",
        "reqps",
        "Ended contexts a second, by outcome. Good: done, and cancelled as often as people interrupt. "
        "Failed should be 0, and disconnected rare.",
        (Query(f"sum by (outcome) ({rate('orpheus_contexts_total')})", "{{outcome}}"),),
        ("OrpheusContextsFailing",),
    ),
)

ROWS: Final = {
    "At a glance": AT_A_GLANCE,
    "Capacity": CAPACITY,
    "Latency": LATENCY,
    "Speech": SPOKEN,
}
