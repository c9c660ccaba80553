#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes libthc.a of one object in which only thc_* is global.
#   static.sh OUTPUT WORK_DIR LIBTHC_ARCHIVE OTHER_ARCHIVE...
set -eu
output=$1 work=$2 whole=$3
shift 3
mkdir -p "$work"
protobuf=$(${CC:-cc} -print-file-name=libprotobuf-c.a)
${LD:-ld} -r -o "$work/all.o" --whole-archive "$whole" --no-whole-archive \
	--start-group "$@" "$protobuf" --end-group
${OBJCOPY:-objcopy} --wildcard --keep-global-symbol='thc_*' "$work/all.o" "$work/thc.o"
rm -f "$output"
${AR:-ar} rcsD "$output" "$work/thc.o"
