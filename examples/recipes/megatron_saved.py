"""Megatron-Core: inspects torch_dist checkpoints of SequentialMLP, experts over two processes.

    pip install ./python megatron-core safetensors
    torchrun --nproc-per-node 2 examples/recipes/megatron_saved.py

The three folders have an axis of layers, a number of the layer in each key, and a tensor for each expert. Processes
that write shards import this file, hence main."""

import saved


def main():
    import megatron_on_cpu  # not on GPUs
    import tiny
    import torch
    from megatron.core import dist_checkpointing

    torch.cuda.synchronize = lambda *args: None
    config, model = megatron_on_cpu.gpt("sequential")
    megatron_on_cpu.train(config, tiny.grown(model), steps=2)
    gates_of = lambda gates: megatron_on_cpu.whole(gates).chunk(2, 1)[0]  # gate and up are one tensor
    layers = [(router, gates_of(gates)) for router, gates in megatron_on_cpu.layers_of(model)]
    for name in ("homogeneous_layers", "non_homogeneous_layers", "singleton_local_shards"):
        (saved.FOLDER / name).mkdir(parents=True, exist_ok=True)
        state = model.sharded_state_dict(metadata={name: True})
        dist_checkpointing.save({**state, "iteration": 2}, str(saved.FOLDER / name))
        saved.check(saved.FOLDER / name, layers)


if __name__ == "__main__":
    main()
