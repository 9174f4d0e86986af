#!/bin/bash
# A sweep on several nodes of a Slurm cluster:  sbatch ray-on-slurm.sh SWEEP_FILE OUT_FOLDER
# One Ray node per Slurm node; the first is the head. OUT_FOLDER and the datasets are on a file system that all nodes see.
#SBATCH --job-name=calprompt
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --time=12:00:00
# For graphics processors, add:  #SBATCH --gpus-per-node=4
# and write  device: cuda  and  resources: {cpus: 4, gpus: 1}  into the sweep file.
set -euo pipefail

sweep_file=${1:?usage: sbatch ray-on-slurm.sh SWEEP_FILE OUT_FOLDER}
out=${2:?usage: sbatch ray-on-slurm.sh SWEEP_FILE OUT_FOLDER}
cpus=${SLURM_CPUS_PER_TASK:-1}
gpus=${SLURM_GPUS_ON_NODE:-0}
port=$((20000 + SLURM_JOB_ID % 20000))

# Only processes of this job may use the cluster: a password of its own, which srun hands to all nodes.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN
export RAY_USAGE_STATS_ENABLED=0

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')

srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --node-ip-address="$address" --port="$port" --num-cpus="$cpus" --num-gpus="$gpus" \
    --include-dashboard=false --block &
sleep 20

if [ "${#nodes[@]}" -gt 1 ]; then
    others=$(IFS=,; echo "${nodes[*]:1}")
    count=$((${#nodes[@]} - 1))
    srun --overlap --nodes="$count" --ntasks="$count" --nodelist="$others" \
        ray start --address="$address:$port" --num-cpus="$cpus" --num-gpus="$gpus" --block &
    sleep 20
fi

# On the head node, where this script runs. When the time is up, Slurm ends everything; the same sbatch command goes on
# with the rest.
calprompt sweep "$sweep_file" --out "$out" --ray auto
