#!/bin/sh
# kv-worker.sh: starts kv-worker with the address at which others reach this container. Replicas have no names of their
# own in compose, so each advertises its address: FD_ADDRESS, else the first address of the container's host name.
set -eu
address=${FD_ADDRESS:-$(hostname -i | cut -d ' ' -f 1)}
case $address in
*:*) address="[$address]" ;;
esac
export FD_ADVERTISE="${FD_ADVERTISE:-${FD_SCHEDULER%%://*}://$address:7402}"
export FD_ADVERTISE_TENSORS="${FD_ADVERTISE_TENSORS:-${FD_SCHEDULER%%://*}://$address:7403}"
export FD_NAME="${FD_NAME:-$(hostname)}"
exec kv-worker "$@"
