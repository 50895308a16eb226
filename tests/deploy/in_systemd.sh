#!/bin/bash
# in_systemd.sh first|second: the part of check_systemd.sh that runs in the container, before its reboot and after it.
mesh="fastdecode-scheduler fastdecode-s-part fastdecode-kv-worker@0 fastdecode-gateway" url=http://127.0.0.1:8080 settings=/etc/fastdecode

die() {
    echo "failed: $*" >&2
    journalctl -b -p info -o cat --no-pager | tail -25 >&2
    exit 1
}
property() { systemctl show -p "$2" --value "$1"; }
until_is() { # UNIT PROPERTY VALUE
    for _ in $(seq 300); do
        [ "$(property "$1" "$2")" != "$3" ] || return 0
        sleep 0.1
    done
    die "$1: $2 is $(property "$1" "$2"), not $3"
}
ask() { # WHAT
    for _ in $(seq 150); do
        curl -sf -m 5 $url/ready >/dev/null && break
        sleep 0.2
    done
    curl -s -m 20 $url/v1/chat/completions -d '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":6}' | grep -q '"content":"' || die "no answer: $1"
    echo "ok: $1"
}
stream() {
    curl -sSN -m 120 $url/v1/completions -d '{"prompt":"Once","max_tokens":1000,"ignore_eos":true,"stream":true}' >/opt/stream 2>&1 &
    for _ in $(seq 100); do
        grep -q text /opt/stream && return
        sleep 0.1
    done
    die "no stream"
}
whole() { # WHAT
    wait
    grep -q DONE /opt/stream || die "the stream was cut off: $1"
    echo "ok: $1"
}
kills() { # UNIT
    local pid
    for _ in $(seq 11); do
        until_is "$1" ActiveState active
        pid=$(property "$1" MainPID)
        kill -9 "$pid"
        while [ "$(property "$1" MainPID)" = "$pid" ]; do sleep 0.02; done
    done
    until_is "$1" SubState running
}
setting() { # SERVICE NAME VALUE
    sed -i "/^$2 = /d" "$settings/$1.conf"
    echo "$2 = $3" >>"$settings/$1.conf"
}
gives_up() { # SERVICE NAME VALUE EXIT-CODE REASON
    cp "$settings/$1.conf" /opt/save
    setting "$1" "$2" "$3"
    systemctl restart "fastdecode-$1"
    until_is "fastdecode-$1" SubState failed
    [ "$(property "fastdecode-$1" ExecMainStatus) $(property "fastdecode-$1" NRestarts)" = "$4 0" ] || die "$1 with $2 = $3"
    systemctl status "fastdecode-$1" --no-pager -l | grep -q -e "$5" || die "no reason: $2 = $3"
    cat /opt/save >"$settings/$1.conf"
    systemctl restart "fastdecode-$1"
}
retries() { # UNIT
    systemctl restart "$1"
    for _ in $(seq 300); do
        [ "$(property "$1" NRestarts)" -lt 2 ] || [ "$(property "$1" ExecMainStatus)" != 3 ] || return 0
        sleep 0.1
    done
    die "$1 is not tried again after exit code 3"
}

first() {
    systemd-sysusers
    cd /opt || exit 1
    systemctl start fastdecode
    ask "up"
    kills fastdecode
    ask "up, killed eleven times"
    stream
    systemctl stop fastdecode
    [ "$(property fastdecode ActiveState)" = inactive ] || die "up does not end clean"
    whole "up is stopped with a stream"
    ! journalctl -u fastdecode -o cat --no-pager | grep -q "CHILD-DIED.*status=0" || die "systemd ended the children of up itself"

    fastdecode certs certs >/dev/null
    install -d $settings/certs
    cp -r certs/{scheduler,s-part,kv-worker,gateway} $settings/certs/
    chown -R fastdecode: $settings/certs
    sed -i "s/SCHEDULER:/$(hostname):/; s/^kv-memory = .*/kv-memory = 1G/" $settings/*.conf
    setting gateway batch-dir /var/lib/fastdecode/batches
    # shellcheck disable=SC2086  # the units are words
    systemctl enable -q --now $mesh
    ask "a mesh"
    for unit in $mesh; do kills "$unit" & done
    wait
    ask "a mesh, each killed eleven times"
    for unit in $mesh; do
        stream
        systemctl restart "$unit"
        whole "$unit is started again with a stream"
    done
    ask "after that"
    gives_up gateway port 99999 2 "port is \"99999\""
    echo nothing >/var/lib/fastdecode/models/text.gguf
    gives_up s-part model /var/lib/fastdecode/models/text.gguf 4 text.gguf
    setting kv-worker kv-memory 9000G
    retries fastdecode-kv-worker@0
    setting kv-worker kv-memory 1G
    until_is fastdecode-kv-worker@0 SubState running
    ask "too little memory, mended"
    sleep 3 # a worker that is still starting has nothing to read again
    # shellcheck disable=SC2086
    systemctl reload $mesh
    for unit in $mesh; do
        for _ in $(seq 100); do
            ! journalctl -u "$unit" -o cat --no-pager | grep -q TLS-RELOADED || continue 2
            sleep 0.1
        done
        die "$unit is not reloaded"
    done
    ask "a reload"
    echo '{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"default","prompt":"Hi","max_tokens":4}}' >in
    file=$(curl -s $url/v1/files -F purpose=batch -F file=@in | sed 's/{"id":"\([^"]*\)".*/\1/')
    batch=$(curl -s $url/v1/batches -d "{\"input_file_id\":\"$file\",\"endpoint\":\"/v1/completions\",\"completion_window\":\"24h\"}" |
        sed 's/{"id":"\([^"]*\)".*/\1/')
    for _ in $(seq 100); do
        ! curl -s "$url/v1/batches/$batch" | grep -q '"status":"completed"' || break
        sleep 0.2
    done
    curl -s "$url/v1/batches/$batch" | grep -q '"completed":1' || die "batch"
    [ "$(stat -c %U:%a /var/lib/fastdecode/batches)" = fastdecode:700 ] || die "the folder of batches"
    echo "ok: a batch"
    ! journalctl -b -o cat --no-pager -u 'fastdecode*' | grep -i -E "not permitted|read-only file|SIGSYS|timed out\. Killing" ||
        die "the sandbox refused something, or a stop took too long"
    stream
    systemctl reboot
    wait
}

second() {
    ask "after the reboot"
    whole "a reboot with a stream"
    [ "$(systemctl is-system-running --wait)" = running ] || die "$(systemctl --failed --no-legend)"
}
"$1"
