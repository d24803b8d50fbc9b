#!/usr/bin/env bash
# A member of ../groups: member.sh BOOTSTRAP TOPIC GROUP. librdkafka commits what it has handed out, at intervals and when it
# leaves, which it does at SIGTERM; with -E it does not end because a broker is away.
exec kcat -b "$1" -G "$3" -E -q -u -f '%p %o %s\n' -X auto.offset.reset=earliest -X auto.commit.interval.ms=100 \
    -X session.timeout.ms=3000 -X heartbeat.interval.ms=300 -X reconnect.backoff.max.ms=500 "$2"
