#!/usr/bin/env bash
# Fuzzes every target, or those named, for some seconds each. Needs stable cargo and g++, nothing else.
#   fuzz/run.sh [seconds] [target…]
# Ends with an error if there is a find, after printing the command that repeats it.
set -euo pipefail
cd "$(dirname "$0")"

seconds=${1:-15}
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for file in libfuzzer/targets/*.rs; do
    name=$(basename "$file" .rs)
    # Whoever adds a target adds a file; only the seeds are not one.
    [ "$name" = seeds ] || targets+=("$name")
  done
fi

# The passes that `-Zsanitizer` machinery would add, asked of LLVM directly, so that stable cargo will do.
# With --target, build scripts and macros are left alone.
host=$(rustc -vV | sed -n 's/^host: //p')
export RUSTFLAGS="--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
  -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
  -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares"
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
export CARGO_TARGET_DIR
cargo build --release --quiet --manifest-path libfuzzer/Cargo.toml --target "$host" --bins
bin=$CARGO_TARGET_DIR/$host/release

"$bin/seeds" corpus
mkdir -p artifacts

fuzz_one() {
  local target=$1 log=artifacts/$1.log
  # A single allocation of 64 MiB is a find, too: see src/lib.rs.
  local limits=(-max_len=16384 -rss_limit_mb=512 -timeout=10)
  mkdir -p "corpus/$target"
  if ! "$bin/$target" "${limits[@]}" -max_total_time="$seconds" -print_final_stats=1 \
      -artifact_prefix="artifacts/$target-" "corpus/$target" 2>"$log"; then
    tail -n 60 "$log"
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    echo "fuzz: FOUND by $target. Repeat with:"
    echo "  $bin/$target ${limits[*]} $PWD/$input"
    return 1
  fi
  echo "fuzz: $target for ${seconds}s:" $(sed -nE 's/^stat::(number_of_executed_units|peak_rss_mb): +/\1 /p' "$log")
}
export -f fuzz_one
export bin seconds

# Each takes one core.
printf '%s\0' "${targets[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'fuzz_one "$1"' _
echo "fuzz: nothing found"
