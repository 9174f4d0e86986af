"""How much there is to gain on base classes: a classifier fitted to image features alone, against zero-shot.

    python experiments/linear_probe.py [--datasets photos clothes] [--shots 4 16]

Logistic regression on the unit features of k training pictures a class, tested on the base half. Its penalty is the
best of four on the validation pictures. It may move every class where it likes, which no prompt can; what it cannot
reach is not in the features of so few pictures.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.linear_model import LogisticRegression

from calprompt import pocket
from calprompt.clip.backbone import unit
from calprompt.clip.load import load_backbone
from calprompt.data.checks import UnreadableImages
from calprompt.data.load import load_dataset
from calprompt.data.splits import base_novel, few_shot
from calprompt.features.frozen import frozen_features

WHOLE = [name for name in pocket.names() if "of" not in pocket.sheet(name).record]  # all but shifts
PENALTIES = (0.1, 1.0, 10.0, 100.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=WHOLE)
    parser.add_argument("--shots", nargs="+", type=int, default=[4, 16])
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    backbone = load_backbone("pocket")
    for name in args.datasets:
        dataset = load_dataset(f"pocket_{name}")
        base, _ = base_novel(dataset)

        def features(split):
            unreadable = UnreadableImages()
            rows = unit(frozen_features(backbone, split.images, unreadable=unreadable)[0])
            unreadable.report()
            return rows.numpy(), list(split.labels)

        test, labels = features(base.test)
        text = backbone.zero_shot(base.class_names, dataset.template_of("a") or "a photo of a {}.")
        predicted = (torch.from_numpy(test) @ text.T).argmax(1).tolist()
        parts = [f"zero-shot {100 * sum(a == b for a, b in zip(predicted, labels, strict=True)) / len(labels):.1f}"]
        for shots in (*args.shots, None):
            drawn, _ = base_novel(few_shot(dataset, shots, args.seed))
            (train, train_labels), (val, val_labels) = features(drawn.train), features(drawn.val)
            fitted = [LogisticRegression(C=C, max_iter=500).fit(train, train_labels) for C in PENALTIES]
            best = max(fitted, key=lambda probe: probe.score(val, val_labels))
            parts.append(f"{shots or 'all'} shots {100 * best.score(test, labels):.1f}")
        print(f"{name}: {', '.join(parts)}", flush=True)


if __name__ == "__main__":
    main()
