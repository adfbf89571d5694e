"""PyTorch: three workers hand batches of images over in shared memory, by files of /dev/shm, and all of them are kept."""

import hashlib
import warnings

import torch
from torch.utils.data import DataLoader, Dataset

IMAGES, BATCH, WORKERS = 400, 16, 3


class Images(Dataset):
    def __len__(self):
        return IMAGES

    def __getitem__(self, nth):
        chance = torch.Generator().manual_seed(nth)
        return torch.randint(0, 256, (3, 224, 224), generator=chance, dtype=torch.uint8).float(), nth


warnings.simplefilter("ignore")
torch.multiprocessing.set_sharing_strategy("file_system")
digest, kept = hashlib.sha256(), []
for images, numbers in DataLoader(Images(), batch_size=BATCH, num_workers=WORKERS):
    kept.append((images, numbers))
for images, numbers in kept:
    digest.update(f"{numbers.tolist()} {images.double().sum().item()} {(images.double() ** 2).sum().item()}".encode())
print(len(kept), "batches", digest.hexdigest())
