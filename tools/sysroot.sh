#!/usr/bin/env bash
# sysroot.sh ARCHITECTURE FOLDER PACKAGES... - unpacks Debian packages of another architecture, and
# what they depend on, into FOLDER. Changes nothing else on this system and needs no root.
set -euo pipefail
architecture=$1 folder=$2
shift 2
[ ! -e "$folder/complete" ] || exit 0
mkdir -p "$folder"
folder=$(realpath "$folder")
work=$folder.packages
rm -rf "$folder" "$work"
mkdir -p "$folder/usr/lib" "$work/lists/partial" "$work/archives/partial"
ln -s usr/lib "$folder/lib"
# apt with this system's sources, but as if nothing were installed
apt=(apt-get -qq -o APT::Architecture="$architecture" -o APT::Architectures="$architecture"
  -o Dir::State::Lists="$work/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$work"
  -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1)
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends --download-only "$@"
for package in "$work"/archives/*.deb; do dpkg-deb -x "$package" "$folder"; done
# absolute links would lead out of the folder
find "$folder" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
  ln -sfnr "$folder$(readlink "$link")" "$link"
done
rm -rf "$work"
touch "$folder/complete"
