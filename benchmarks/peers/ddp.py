"""PyTorch's DistributedDataParallel: python -m benchmarks.peers.ddp

Processes of one thread each, on gloo. Batches are rows of a tensor in memory, in the
order of a permutation an epoch, without a DataLoader, which would cost more. Tells
updates per second.
"""

import json
import tempfile
import time

from benchmarks.peers import command, data


def main() -> None:
    args = command.parser(__doc__, workers=2).parse_args()
    try:
        import torch.multiprocessing
    except ModuleNotFoundError:
        reason = "torch is not installed: pip install dtrain[benchmarks]"
        print(json.dumps({"skipped": reason}))
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(train, (args, folder), nprocs=args.workers)


def train(rank: int, args, folder: str) -> None:
    import torch
    import torch.distributed

    # More threads than cores, and the processes would wait for each other.
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=args.workers,
    )
    images, labels = map(torch.from_numpy, data.load(rank, args.workers))
    model = torch.nn.parallel.DistributedDataParallel(
        mlp(torch, args.model), gradient_as_bucket_view=True, static_graph=True
    )
    rate = data.LEARNING_RATES[args.optimizer]
    made = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[args.optimizer]
    optimizer = made(model.parameters(), rate)
    loss_function = torch.nn.CrossEntropyLoss()

    def run(num_steps: int) -> None:
        order = torch.empty(0)
        for _ in range(num_steps):
            if len(order) < data.BATCH_SIZE:
                order = torch.randperm(len(images))
            batch, order = order[: data.BATCH_SIZE], order[data.BATCH_SIZE :]
            optimizer.zero_grad()
            loss_function(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        torch.distributed.barrier()

    run(max(args.steps // 10, 10))
    since = time.perf_counter()
    run(args.steps)
    seconds = time.perf_counter() - since
    if rank == 0:
        command.tell(args.steps / seconds, torch=torch.__version__)
    torch.distributed.destroy_process_group()


def mlp(torch, name: str):
    layers, inputs = [], data.NUM_PIXELS
    for units in data.WIDTHS[name]:
        layers += [torch.nn.Linear(inputs, units), torch.nn.ReLU()]
        inputs = units
    return torch.nn.Sequential(*layers, torch.nn.Linear(inputs, data.NUM_CLASSES))


if __name__ == "__main__":
    main()
