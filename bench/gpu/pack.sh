#!/bin/bash
# bench/gpu/pack.sh [FOLDER]: what the proof needs on a machine without network,
# in one folder (build/gpu-pack): the built library and programs, the libraries
# they need, the Python package and the scripts. vLLM itself, PyTorch and a
# CUDA driver are not in it. There:
#   . FOLDER/env.sh && FOLDER/bench/gpu/run.py STAGE... --out DIR
# Needs make build first; BUILD names another build than build/release.
set -eu
cd "$(dirname "$0")/../.."
out=${1:-build/gpu-pack}
build=${BUILD:-build/release}
fail()
{
    echo "pack.sh: $*" >&2
    exit 1
}
for program in larder larder-bench; do
    [ -x "$build/bin/$program" ] ||
        fail "$build/bin/$program is missing: make build"
done
[ -e "$build/lib/liblarder.so" ] || fail "$build/lib/liblarder.so is missing"
case $out in
/ | . | .. | "") fail "not into $out" ;;
esac
# Only a folder that this script made is replaced.
[ ! -e "$out" ] || [ -e "$out/env.sh" ] || fail "$out is there already"
rm -rf "$out"
mkdir -p "$out/bin" "$out/lib" "$out/more" "$out/python" "$out/bench"

cp "$build/bin/larder" "$build/bin/larder-bench" "$out/bin/"
cp -L "$build/lib/liblarder.so" "$out/lib/"
strip --strip-debug "$out"/bin/* "$out/lib/liblarder.so"
# The C library, the loader and the kernel's own are every machine's.
ldd "$out"/bin/* "$out/lib/liblarder.so" | awk '$2 == "=>" { print $3 }' |
    sort -u | grep -Ev '/(libc|libm|libdl|libpthread|librt)\.so' |
    while read -r library; do
        cp -L "$library" "$out/more/"
    done
cp -r python/larder_kv "$out/python/"
cp -r bench/gpu "$out/bench/"
find "$out" -name __pycache__ -prune -exec rm -rf {} +
git rev-parse --short HEAD > "$out/COMMIT"
[ -z "$(git status --porcelain)" ] || sed -i 's/$/ and changes/' "$out/COMMIT"

# Libraries of that machine come first: ours only where it has none.
cat > "$out/env.sh" <<'END'
# . env.sh: what bench/gpu/run.py and the connector need to know.
larder_pack=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
larder_libs=$larder_pack/used
rm -rf "$larder_libs"
mkdir -p "$larder_libs"
while :; do
    larder_new=no
    for larder_name in $(LD_LIBRARY_PATH=$larder_libs ldd \
            "$larder_pack"/bin/* "$larder_pack/lib/liblarder.so" \
            "$larder_libs"/*.so* 2>/dev/null |
            awk '/not found/ { print $1 }' | sort -u); do
        if [ -e "$larder_pack/more/$larder_name" ] &&
                [ ! -e "$larder_libs/$larder_name" ]; then
            ln -s "$larder_pack/more/$larder_name" "$larder_libs/"
            larder_new=yes
        fi
    done
    [ $larder_new = yes ] || break
done
export LARDER_BIN=$larder_pack/bin/larder
export LARDER_PROGRAM=$LARDER_BIN
export LARDER_LIBRARY=$larder_pack/lib/liblarder.so
export VLLM_USE_FLASHINFER_SAMPLER=0 PYTHONUNBUFFERED=1
export PYTHONPATH=$larder_pack/python${PYTHONPATH:+:$PYTHONPATH}
if [ -n "$(ls "$larder_libs")" ]; then
    export LD_LIBRARY_PATH=$larder_libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
"$LARDER_BIN" --version
END
echo "pack.sh: $out, $(du -sh "$out" | cut -f1), commit $(cat "$out/COMMIT")"
