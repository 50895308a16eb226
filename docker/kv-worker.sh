#!/bin/sh
# kv-worker.sh: starts kv-worker under the address that others reach this container by. Replicas have no names of their
# own in compose, so each advertises its own address: FD_ADDRESS, else the first that the container's host name has.
set -eu
address=${FD_ADDRESS:-$(hostname -i | cut -d ' ' -f 1)}
case $address in
*:*) address="[$address]" ;;
esac
export FD_ADVERTISE="${FD_ADVERTISE:-tcp://$address:7402}"
export FD_ADVERTISE_TENSORS="${FD_ADVERTISE_TENSORS:-tcp://$address:7403}"
export FD_NAME="${FD_NAME:-$(hostname)}"
exec kv-worker "$@"
