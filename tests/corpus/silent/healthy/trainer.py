"""A language model built from a configuration and trained by the Trainer of transformers.

slow: imports transformers
"""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __init__(self, count):
        self.rows = torch.randint(0, 50, (count, 10), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        max_steps=16,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        warmup_steps=4,
        eval_strategy="steps",
        eval_steps=8,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    Trainer(model, arguments, train_dataset=Tokens(64), eval_dataset=Tokens(8)).train()
