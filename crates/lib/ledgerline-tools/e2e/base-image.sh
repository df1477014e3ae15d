#!/usr/bin/env bash
# Makes a stand-in for Lambda's base image out of Debian's packages, for `sam local` where that image cannot be pulled. Needs
# root, a running dockerd, and debootstrap (both are Debian packages: docker.io, debootstrap).
set -euo pipefail

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase --include=ca-certificates bookworm "$root" >&2
# Where Lambda puts the function, and where SAM looks for its entry point.
mkdir -p "$root/var/task" "$root/var/runtime" "$root/opt"
case $(uname -m) in
  x86_64) architecture=x86_64 ;;
  aarch64) architecture=arm64 ;;
  *) echo "no Lambda runs on $(uname -m)" >&2 && exit 1 ;;
esac
for tag in al2023 "al2023-$architecture"; do
  tar --create --directory "$root" . |
    docker import --change 'WORKDIR /var/task' --change 'ENV LAMBDA_TASK_ROOT=/var/task' - \
      "public.ecr.aws/lambda/provided:$tag"
done
