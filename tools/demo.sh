#!/bin/bash
# Demo: trains a small BLIP-2 on pictures it draws itself, plots the loss and saves the model.
#
#   tools/demo.sh [CUDA=0|1]       (make demo calls it)
#
# Uses up to four GPUs where there are some, else four CPU ranks.

set -e
cd "$(dirname "$0")/.."
cuda=0
case "${1:-}" in
  CUDA=[01]) cuda=${1#CUDA=} ;;
  "") ;;
  *) echo "demo: unknown argument $1; usage: tools/demo.sh [CUDA=0|1]" >&2; exit 2 ;;
esac

python=$(tools/setup.sh --python)
if [ ! -d demo/model ] || [ ! -d demo/data ]; then
  echo "== drawing the pictures (demo/)"
  "$python" tools/make_demo.py --out demo --samples 384 --seed 0
fi

echo "== building"
make -s -j"$(nproc)" CUDA="$cuda" blipft

gpus=0
if [ "$cuda" = 1 ]; then gpus=$(nvidia-smi -L 2> /dev/null | grep -c '^GPU' || true); fi
ranks=4
[ "$gpus" -ge 1 ] && [ "$gpus" -lt 4 ] && ranks=$gpus
batch=$((32 / ranks))  # the same 32 samples a step, shared by the ranks (30 on three)

options=(-np "$ranks" --oversubscribe --bind-to none)
[ "$(id -u)" = 0 ] && options+=(--allow-run-as-root)
# Containers often forbid reading another process's memory; Open MPI then warns on every start.
export OMPI_MCA_btl_vader_single_copy_mechanism=${OMPI_MCA_btl_vader_single_copy_mechanism:-none}

echo "== training on $ranks $([ "$gpus" -ge 1 ] && echo "GPU(s)" || echo "CPU ranks")"
command=(mpirun "${options[@]}" ./blipft inputs/demo.yaml parallel.devices="$ranks" train.batch_size=$batch)
"${command[@]}"

"$python" tools/plot_loss.py runs/demo
echo
echo "trace        runs/demo/trace.rank0000.h5 (one file a rank; h5dump, h5py and pandas read it)"
echo "loss plot    runs/demo/loss.png"
echo "saved model  runs/demo/model (transformers' from_pretrained reads it)"
echo "once more    OMPI_MCA_btl_vader_single_copy_mechanism=$OMPI_MCA_btl_vader_single_copy_mechanism ${command[*]}"
