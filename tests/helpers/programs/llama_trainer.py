"""Train a tiny Llama with transformers' Trainer on whatever device it chooses; print what it did as JSON.

Usage: llama_trainer.py FOLDER. The run is stopped and resumed from its checkpoint half-way.
"""

import json
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()


def model():
    set_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def trainer(folder, steps):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(3, 64, (32, 16), generator=generator)
    data = [{"input_ids": row, "labels": row} for row in rows]
    arguments = TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=4,
        logging_steps=1,
        save_steps=4,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        report_to="none",
        disable_tqdm=True,
        skip_memory_metrics=False,
    )
    return Trainer(model=model(), args=arguments, train_dataset=data, eval_dataset=data[:8])


def losses(history):
    return [entry["loss"] for entry in history if "loss" in entry]


trainer(sys.argv[1], 4).train()
resumed = trainer(sys.argv[1], 8)
resumed.train(resume_from_checkpoint=True)
print(
    json.dumps(
        {
            "device": str(resumed.args.device),
            "weights": str(next(resumed.model.parameters()).device),
            "losses": losses(resumed.state.log_history),
            "evaluation": resumed.evaluate()["eval_loss"],
            "optimizer": type(resumed.optimizer.optimizer).__name__,
        }
    )
)
