// Config schema: the table of keys. Texts that follow from it are in config_words.cpp.
#include "config/config_schema.h"

#include <algorithm>

#include "blipft/error.h"
#include "blipft/optimizer_names.h"
#include "blipft/pictures.h"
#include "config/allowed.h"

namespace blipft {

namespace {

using namespace table;

void add_model(std::vector<Key>& keys) {
  const auto m = [&](auto member, auto... rest) -> Key& {
    return keys.emplace_back(key(&Config::model, member, "model", rest...));
  };
  using M = ModelSection;
  using Names = std::vector<std::string>;
  // Each machine may have a copy of its own: ranks, and parts of a run, compare what is in it.
  m(&M::path, "path", required(),
    "the model's folder in Hugging Face's form: config.json, weights, tokenizer and image processor")
      .on_resume_is(OnResume::unreported).may_differ_between_ranks();
  m(&M::init, "init", words_of<InitialWeights>(), "pretrained loads the weights of model.path; random starts from new ones");
  m(&M::pictures, "pictures", any(), "true: a Gemma 3 with its vision tower; false: its text part alone");
  m(&M::freeze, "freeze", any(), "parameter groups of the model that are not trained; --plan prints their names");
  m(&M::quantize, "quantize",
    words_of<WeightQuantization>({{"4bit", "nf4"}, {"int4", "nf4"}, {"fp4", "nf4"}, {"bnb.nf4", "nf4"},
                                            {"8bit", "int8"}, {"bnb.int8", "int8"}, {"f8", "fp8"}, {"float8", "fp8"}}),
    "stores the matrices of frozen layers in 4 or 8 bits; embeddings, norms and the head keep their type",
    Names{"quantization", "load_in_4bit", "load_in_8bit"});
  m(&M::double_quantize, "double_quantize", any(), "true: stores the scales of quantized blocks in 8 bits instead of 32",
    Names{"bnb_4bit_use_double_quant", "double_quant"});
  m(&M::quantize_groups, "quantize_groups", any(),
    "the frozen parameter groups whose layers are quantized; empty: all frozen groups");
}

void add_adapter(std::vector<Key>& keys) {
  const auto a = [&](auto member, auto... rest) -> Key& {
    return keys.emplace_back(key(&Config::adapter, member, "adapter", rest...));
  };
  using A = AdapterSection;
  using Names = std::vector<std::string>;
  a(&A::kind, "kind", words_of<AdapterKind>({{"qlora", "lora"}}),
    "lora trains low-rank adapters and freezes the model itself", Names{"peft_type"});
  a(&A::r, "r", from_to(1, 65536), "the rank of the adapters", Names{"rank", "lora_r"});
  a(&A::alpha, "alpha", above(0, max_factor), "the adapters' product is scaled by alpha / r", Names{"lora_alpha"});
  a(&A::rslora, "rslora", any(), "true: the adapters' product is scaled by alpha / sqrt(r) instead", Names{"use_rslora"});
  a(&A::dropout, "dropout", half_open(0, 1), "the probability of dropout on the adapters' input", Names{"lora_dropout"});
  a(&A::targets, "targets", any(),
    "the layers that get adapters: q, k, v, o, mlp, head of the language model, language (all of these but the head), "
    "all-linear (those of a tower too), or ends of modules' names (q_proj)", Names{"target_modules"});
  a(&A::dtype, "dtype", words_of<AdapterDtype>({{"float32", "f32"}, {"fp32", "f32"}, {"bfloat16", "bf16"}}),
    "the type of the adapters' weights, gradients and optimizer states; products run in the compute type");
  a(&A::path, "path", any(), "the PEFT adapter folder to continue from; empty: new adapters",
    Names{"adapter_name_or_path"}).on_resume_is(OnResume::unreported).may_differ_between_ranks();
}

void add_data_files(std::vector<Key>& keys) {
  const auto d = [&](auto member, auto... rest) -> Key& {
    return keys.emplace_back(key(&Config::data, member, "data", rest...));
  };
  using D = DataSection;
  using Names = std::vector<std::string>;
  d(&D::path, "path", required(),
    "the samples: an ImageFolder directory, COCO captions (.json), a .tar file or a directory of .tar shards "
    "(WebDataset), a .json, .jsonl or .csv file or a directory of them")
      .on_resume_is(OnResume::unreported).may_differ_between_ranks();
  d(&D::val_path, "val_path", any(), "the samples for validation, in any form of data.path; empty: none",
    Names{"validation_path", "eval_path"}).on_resume_is(OnResume::allowed).may_differ_between_ranks();
  d(&D::val_split_fraction, "val_split_fraction", half_open(0, 1),
    "the share of the samples of data.path that is held out for validation, chosen by train.seed",
    Names{"val_split", "val_fraction", "validation_split"});
  d(&D::format, "format", words_of<DatasetFormat>(),
    "the format of data.path; auto: detected from its files");
  d(&D::num_train_samples, "num_train_samples", from_to(0, max_samples),
    "uses the first n samples; 0 uses all; a set with fewer than n repeats", Names{"num_samples", "samples"});
  d(&D::keys, "keys",
    one_of({"messages", "role", "content", "weight", "instruction", "input", "output", "prompt", "completion", "answer",
            "text", "file_name", "records"}),
    "the names that the records use for blipft's keys: {prompt: question, completion: answer}",
    Names{"columns", "column_mapping", "text_column", "caption_column", "image_column", "field_map"});
  d(&D::pictures, "pictures", any(),
    "the folder that the pictures' names in metadata are relative to; empty: looked for beside the metadata",
    Names{"image_root", "image_folder", "image_dir", "images"}).on_resume_is(OnResume::unreported).may_differ_between_ranks();
  d(&D::allow_outside, "allow_outside", any(),
    "true: pictures of an ImageFolder may be outside its folder: through .., an absolute path or a link")
      .on_resume_is(OnResume::allowed);
  d(&D::exif_orientation, "exif_orientation", any(),
    "true: rotates pictures by their EXIF orientation, like the datasets library; false: uses them as stored");
  d(&D::transparency, "transparency", words_of<Transparency>(),
    "white puts transparent pictures on a white background, like transformers 5.23 and newer; drop ignores transparency, "
    "like older versions");
  d(&D::min_pixels, "min_pixels", from_to(0, max_picture_pixels),
    "enlarges pictures in texts with fewer pixels; 0: as the files of the model's processor say");
  d(&D::max_pixels, "max_pixels", from_to(0, max_picture_pixels),
    "reduces pictures in texts with more pixels; 0: as the files of the model's processor say", Names{"image_max_pixels"});
  d(&D::max_pictures, "max_pictures", from_to(0, 65535), "the maximum number of pictures in a sample; 0: any number");
  d(&D::pixel_library, "pixel_library", words_of<PixelLibraryChoice>(),
    "the library whose resizing of pictures in texts is reproduced bit for bit; auto: that of the model family's processor");
}

void add_data(std::vector<Key>& keys) {
  add_data_files(keys);
  const auto d = [&](auto member, auto... rest) -> Key& {
    return keys.emplace_back(key(&Config::data, member, "data", rest...));
  };
  using D = DataSection;
  using Names = std::vector<std::string>;
  d(&D::max_text_tokens, "max_text_tokens", from_to(2, 1 << 27),
    "longer texts are truncated; the first token is never a label, so that 2 leave one label; default for JSON data: 512; "
    "another name is max_seq_length", Names{"max_length", "max_seq_len", "cutoff_len", "block_size"});
  keys.back().other_name = "max_seq_length";
  d(&D::prompt_style, "prompt_style", one_of_or_containing({"alpaca", "none", "chat"}, "{instruction}"),
    "the prompt of JSON records with instruction and input; none joins both unchanged; chat turns them into "
    "conversations for data.chat_template; a text of your own contains {instruction} and {input}").absence_has_a_meaning();
  d(&D::chat_template, "chat_template",
    one_of_or_containing({"auto", "chatml", "llama2", "llama3", "mistral", "gemma", "zephyr", "alpaca"}, ".jinja",
                         "the path of a .jinja file"),
    "the template that turns JSON records with messages into text; auto: that of the model's folder");
  d(&D::train_on, "train_on", words_of<TrainOn>(),
    "the answers of a conversation that are trained: all, or only the last");
  d(&D::chat_date, "chat_date", any(),
    "the date of today in templates that print it; a fixed date keeps texts the same every day");
  d(&D::prompt_template, "prompt_template", any(),
    "pictures: a text with {} in place of the prompt, or a text without {} that precedes each caption; the model is not "
    "trained on it; empty: prompts unchanged, captions without a prompt", Names{"prompt_prefix"});
  d(&D::answers, "answers", words_of<AnswerSelection>(),
    "for a picture's prompt with several answers: draw uses one in each pass, by their weights; all makes a sample of each; "
    "common uses the most frequent");
  d(&D::mask_prompt, "mask_prompt", any(),
    "true: for JSON records with a prompt, only the answer is trained; always so for records with messages");
  d(&D::append_eos, "append_eos", words_of<AutoSwitch>(),
    "true: appends the end token to texts; auto: to answers, and to other texts if the tokenizer's files say so");
  d(&D::text_padding, "text_padding", words_of<TextPadding>(),
    "packed gives each text its own length; longest pads all texts of a step to its longest, rounded up to 8; max pads "
    "to max_text_tokens; auto: longest if train.loss_on_padding is true, else packed", Names{"padding"});
  // Samples do not depend on how many threads prepare them, or how far ahead.
  d(&D::num_workers, "num_workers", from_to(1, max_threads), "the number of threads of each rank that decode and tokenize",
    Names{"workers"}).on_resume_is(OnResume::allowed).may_differ_between_ranks();
  d(&D::prefetch_steps, "prefetch_steps", from_to(1, 4096), "the number of steps that are prepared ahead",
    Names{"prefetch_factor"}).on_resume_is(OnResume::allowed).may_differ_between_ranks();
  d(&D::shuffle, "shuffle", any(), "true: every epoch has a new order");
  d(&D::on_bad_sample, "on_bad_sample", words_of<FaultAction>(),
    "action for a sample that cannot be read, decoded or tokenized; skip counts and lists it and continues")
      .on_resume_is(OnResume::allowed);
}

void add_learning(std::vector<Key>& keys) {
  const auto t = [&](auto member, auto... rest) -> Key& {
    return keys.emplace_back(key(&Config::train, member, "train", rest...));
  };
  const auto s = [&](auto member, auto... rest) -> Key& {
    return keys.emplace_back(key(&Config::steps, member, "train", rest...));
  };
  using S = StepsSection;
  using T = TrainSection;
  using Names = std::vector<std::string>;
  t(&T::lr, "lr", above(0, 1e30), "the learning rate", Names{"learning_rate"});
  t(&T::lr_schedule, "lr_schedule", words_of<LearningRateCurve>({{"constant_with_warmup", "constant"}}),
    "the learning rate after the warm-up; linear and cosine end at 0", Names{"scheduler", "schedule", "lr_scheduler"});
  t(&T::warmup_steps, "warmup_steps", from_to(0, max_steps),
    "the learning rate rises over the first n steps: step s, counted from 0, has lr * s / n", Names{"warmup"});
  t(&T::warmup_ratio, "warmup_ratio", half_open(0, 1), "warmup_steps as a share of all steps, rounded up");
  // Together they are the samples of a step, which must be the same.
  s(&S::batch_size, "batch_size", word_or_from_to("auto", 1, kMaxSamplesAtOnce),
    "the samples of one micro-batch of one rank; auto (if only total_batch_size is given): the fastest number that fits",
    Names{"micro_batch_size", "per_device_batch_size", "per_device_train_batch_size"}).on_resume_is(OnResume::allowed);
  s(&S::accumulate_grad_batches, "accumulate_grad_batches", from_to(0, max_batch),
    "the micro-batches of one step; 0 (the default if only total_batch_size is given): derived from total_batch_size",
    Names{"gradient_accumulation_steps", "accumulation", "grad_accum"}).on_resume_is(OnResume::allowed);
  s(&S::total_batch_size, "total_batch_size", from_to(0, max_samples),
    "the samples of one step over all ranks; determines accumulate_grad_batches; 0: batch_size and accumulate_grad_batches determine it",
    Names{"global_batch_size", "effective_batch_size"}).on_resume_is(OnResume::allowed);
  t(&T::precision, "precision",
    words_of<Precision>({{"32", "32-true"}, {"f32", "32-true"}, {"fp32", "32-true"}, {"float32", "32-true"}, {"bf16", "bf16-true"},
            {"bfloat16", "bf16-true"}, {"16-mixed", "bf16-mixed"}, {"fp16", "bf16-true"}, {"16-true", "bf16-true"}}),
    "bf16-mixed keeps master weights in f32 and computes in bf16", Names{"dtype"});
  t(&T::matmul_precision, "matmul_precision", words_of<MatmulPrecision>(),
    "matrix products of 32-true on GPUs: highest uses f32, high uses TF32, like torch.set_float32_matmul_precision",
    Names{"float32_matmul_precision", "tf32"});
  t(&T::matmul, "matmul", words_of<MatmulType>({{"bf16", "default"}, {"f8", "fp8"}, {"float8", "fp8"}}),
    "fp8: layers multiply in 8-bit floats, with a scale for each tensor, on GPUs that support it; default: in train.precision",
    Names{"fp8", "float8"});
  t(&T::matmul_exclude, "matmul_exclude", any(),
    "modules that do not multiply in fp8, by the ends of their names, such as [down_proj, layers.0.mlp.up_proj]");
  t(&T::fp8_gradients, "fp8_gradients", words_of<Fp8GradientType>(),
    "the 8-bit float of gradients: e4m3 has more digits, e5m2 more range");
  t(&T::fp8_least_size, "fp8_least_size", from_to(0, 1e9),
    "layers with a smaller in * out / (in + out) do not multiply in fp8: casting would cost more than the product saves");
  t(&T::fp8_keep_weights, "fp8_keep_weights", words_of<Fp8Retention>(),
    "the weights whose 8-bit copies are kept over a step: as many as fit, all, or none (cast at each use)")
      .on_resume_is(OnResume::allowed);
  t(&T::fp8_keep_inputs, "fp8_keep_inputs", words_of<Fp8Retention>(),
    "the layers whose 8-bit inputs are kept from forward to backward: as many as fit, all, or none (cast twice)")
      .on_resume_is(OnResume::allowed);
}

void add_optimizer(std::vector<Key>& keys) {
  const auto t = [&](auto member, auto... rest) -> Key& {
    return keys.emplace_back(key(&Config::train, member, "train", rest...));
  };
  using T = TrainSection;
  using Names = std::vector<std::string>;
  t(&T::optim, "optim",
    one_of(optimizer_names(),
           {{"adam", "adamw"}, {"adamw_torch", "adamw"}, {"adamw_torch_fused", "adamw"}, {"adamw_hf", "adamw"},
            {"adamw_bnb_8bit", "adamw8bit"}, {"adamw_8bit", "adamw8bit"}, {"paged_adamw_8bit", "adamw8bit"}}),
    "the optimizer; adamw8bit is AdamW with moments in 8 bits", Names{"optimizer"});
  t(&T::beta1, "beta1", half_open(0, 1), "adamw: the decay of the first moment; lion: of the mean in its sign");
  t(&T::beta2, "beta2", half_open(0, 1),
    "adamw: the decay of the second moment; lion: the decay of its mean (0.99 in the paper)");
  t(&T::eps, "eps", from_to(min_f32, 1), "adamw adds it to the denominator", Names{"epsilon", "adam_epsilon"});
  t(&T::weight_decay, "weight_decay", from_to(0, max_factor),
    "adamw and lion apply it to the weights, decoupled from the gradient; sgd adds it to the gradient");
  t(&T::decay_norms_and_biases, "decay_norms_and_biases", any(),
    "false: train.weight_decay does not apply to norm weights and biases, as in transformers' Trainer");
  t(&T::momentum, "momentum", half_open(0, 1), "the momentum of sgd");
  t(&T::stochastic_rounding, "stochastic_rounding", any(),
    "true: updates of bf16-true round weights up or down at random, so that they are exact in the mean");
}

void add_train(std::vector<Key>& keys) {
  add_learning(keys);
  add_optimizer(keys);
  const auto t = [&](auto member, auto... rest) -> Key& {
    return keys.emplace_back(key(&Config::train, member, "train", rest...));
  };
  const auto s = [&](auto member, auto... rest) -> Key& {
    return keys.emplace_back(key(&Config::steps, member, "train", rest...));
  };
  using S = StepsSection;
  using T = TrainSection;
  using Names = std::vector<std::string>;
  t(&T::gradient_clip_val, "gradient_clip_val", from_to(0, 1e30),
    "gradients with a larger norm are scaled down to it; 0: no clipping", Names{"max_grad_norm", "grad_clip", "clip_grad_norm"});
  t(&T::on_nonfinite, "on_nonfinite", words_of<FaultAction>(),
    "action for a step whose gradient norm is not finite: stop ends with an error, skip leaves the weights unchanged and continues",
    Names{"skip_nan", "skip_nonfinite"}).on_resume_is(OnResume::allowed);
  t(&T::act_ckpt, "act_ckpt", words_of<LayerCheckpointing>({{"true", "full"}, {"false", "none"}}),
    "the layers that recompute their forward pass in the backward pass", Names{"activation_checkpointing", "gradient_checkpointing"})
      .on_resume_is(OnResume::allowed);
  s(&S::max_epochs, "max_epochs", minus_one_or_positive(1e6),
    "maximum number of passes over the data; -1 sets no limit, and is the default if max_steps is given",
    Names{"epochs", "num_epochs", "num_train_epochs"}).on_resume_is(OnResume::length);
  s(&S::max_steps, "max_steps", minus_one_or_positive(),
    "maximum number of steps; -1 sets no limit; if max_epochs is given too, the limit reached first ends the run",
    Names{"steps"}).on_resume_is(OnResume::length);
  s(&S::limit_train_batches, "limit_train_batches", above(0, max_steps),
    "up to 1 it is a fraction of an epoch's steps; above 1 it is a number of steps of each epoch");
  t(&T::val_check_interval, "val_check_interval", from_to(0, max_steps),
    "the run validates every N steps and at the end; 0: after every epoch",
    Names{"val_every", "eval_interval", "eval_steps", "check_val_every_n_epoch"}).on_resume_is(OnResume::allowed);
  s(&S::limit_val_batches, "limit_val_batches", above(0, max_steps),
    "up to 1 it is a fraction of a validation's batches; above 1 it is a number of batches",
    Names{"eval_iters", "max_eval_batches"}).on_resume_is(OnResume::allowed);
  t(&T::early_stopping_patience, "early_stopping_patience", from_to(0, max_steps),
    "the run ends after N validations in a row without improvement, by checkpoint.keep_best or the loss; 0: never",
    Names{"patience"}).on_resume_is(OnResume::allowed);
  s(&S::seed, "seed", at_least(0), "the random seed of shuffling, dropout and random weights");
  s(&S::loss_on_padding, "loss_on_padding", any(), "true: the loss includes padding tokens, as in the BLIP-2 tutorial");
  s(&S::loss_normalization, "loss_normalization", words_of<LossNormalization>(),
    "tokens takes the mean over all tokens of a step; micro_batch takes the mean of the micro-batches' means");
  t(&T::dropout, "dropout", any(), "false: all dropout probabilities are 0");
}

void add_parallel(std::vector<Key>& keys) {
  // How a run is computed makes no other run of it.
  const auto p = [&](auto member, auto... rest) -> Key& {
    return keys.emplace_back(key(&Config::parallel, member, "parallel", rest...)).on_resume_is(OnResume::allowed);
  };
  using P = ParallelSection;
  using Names = std::vector<std::string>;
  p(&P::device, "device", words_of<DeviceChoice>({{"gpu", "cuda"}}), "auto: GPUs if there are any",
    Names{"accelerator"});
  p(&P::devices, "devices", from_to(0, max_ranks), "the number of ranks, one GPU each; 0: as many as were started",
    Names{"gpus", "num_gpus", "ranks", "world_size", "nproc"});
  p(&P::strategy, "strategy",
    words_of<StrategyKind>({{"deepspeed", "fsdp"}, {"zero2", "fsdp"}, {"zero3", "fsdp"}, {"fsdp2", "fsdp"}, {"dp", "ddp"}}),
    "auto: single on one rank, else ddp");
  p(&P::shard_ranks, "shard_ranks", one_of_or_integer({"all", "node"}, 1, max_ranks),
    "fsdp: the ranks that share one copy of the parameters; node: those of one machine; gradients are summed over "
    "the groups", Names{"sharding_strategy", "hybrid_shard", "hybrid_sharding"});
  // auto becomes what the checkpoint's part of the run chose.
  p(&P::reshard, "reshard", words_of<ReshardPolicy>(),
    "fsdp: always drops gathered parameters after each use, step does once a step, auto decides by the memory",
    Names{"reshard_after_forward"}).on_resume_is(OnResume::unreported);
  p(&P::offload, "offload", words_of<OffloadedData>(),
    "data in page-locked host memory: optimizer (states and master weights, updated over the link), parameters (prefetched "
    "before each use), activations (saved by checkpointed layers)",
    Names{"offload_optimizer", "cpu_offload"});
  p(&P::prefetch_bytes, "prefetch_bytes", from_to(0, 1e15),
    "the number of bytes that fsdp gathers before their use; 0: the free memory of the plan");
  p(&P::direct_gathers, "direct_gathers", any(),
    "true: fsdp gathers by copies between GPUs with peer access; false: by NCCL");
  p(&P::direct_reductions, "direct_reductions", any(),
    "true: gradients are summed by reading the memory of GPUs with peer access; false: by NCCL");
  p(&P::nccl_max_ctas, "nccl_max_ctas", from_to(0, 1024),
    "the maximum number of thread blocks of a NCCL collective; 0: chosen by blipft");
  p(&P::gemm_search, "gemm_search", words_of<GemmSearchTime>(),
    "the time spent on timing matrix products that are new on this machine");
  p(&P::cuda_graph, "cuda_graph", any(), "true: the step of each text shape is captured once and replayed");
  p(&P::threads, "threads", from_to(0, max_threads),
    "the number of CPU threads of each rank; 0: OMP_NUM_THREADS if set, else the machine's cores divided by its ranks",
    Names{"omp_num_threads", "num_threads"}).may_differ_between_ranks();
  p(&P::timeout_seconds, "timeout_seconds", from_to(0.01, 1e6),
    "the run ends if a rank is silent or no rank makes progress for this time (longer while it starts or saves)",
    Names{"timeout", "nccl_timeout", "ddp_timeout"});
}

void add_checkpoint(std::vector<Key>& keys) {
  const auto c = [&](auto member, auto... rest) -> Key& {
    return keys.emplace_back(key(&Config::checkpoint, member, "checkpoint", rest...)).on_resume_is(OnResume::allowed);
  };
  using C = CheckpointSection;
  using Names = std::vector<std::string>;
  c(&C::every_steps, "every_steps", from_to(0, max_steps), "a checkpoint is written every N steps; 0: never",
    Names{"save_steps", "save_interval", "every_n_train_steps"});
  c(&C::every_minutes, "every_minutes", from_to(0, 1e6), "a checkpoint is written every N minutes; 0: never",
    Names{"train_time_interval"});
  c(&C::keep, "keep", from_to(1, 1e6), "the number of checkpoints to keep, the newest ones", Names{"save_total_limit", "save_top_k"});
  Allowed best;                            // which scores there are is known to those who compute them
  best.meant = {{"val_loss", "loss"}, {"eval_loss", "loss"}};
  c(&C::keep_best, "keep_best", best,
    "none, loss, or a score of generated texts (cider, exact_match, ...): a checkpoint is also written and kept after the "
    "validation with the lowest loss or best score",
    Names{"metric_for_best_model", "monitor"}).on_resume_is(OnResume::refused);
  c(&C::path, "path", any(), "the folder of the checkpoints; empty: checkpoints/ under output.path")
      .on_resume_is(OnResume::unreported);
  c(&C::resume, "resume", one_of_or_containing({"never", "auto"}, "/", "the path of a checkpoint, with / in it"),
    "auto: continues from the newest complete checkpoint, if there is one; a path (with a /): from that checkpoint",
    Names{"resume_from_checkpoint", "ckpt_path"}).on_resume_is(OnResume::unreported);
  Allowed limit = one_of_or_containing({"none"}, ":", "MM:SS, H:MM:SS, D-HH:MM or D-HH:MM:SS");
  limit.or_integer = true;
  limit.min = 1, limit.max = 1e6;
  c(&C::time_limit, "time_limit", limit,
    "minutes, or a time in Slurm's form; before it is over, the run writes a checkpoint and ends with code 75",
    Names{"max_time"});
  c(&C::host_gib, "host_gib", from_to(0, 1e6),
    "the page-locked host memory of a rank, in GiB, that buffers a checkpoint; 0: as needed, up to a quarter of the rank's "
    "share");
}

void add_generate(std::vector<Key>& keys) {
  const auto g = [&](auto member, auto... rest) -> Key& {
    return keys.emplace_back(key(&Config::generate, member, "generate", rest...)).on_resume_is(OnResume::allowed)
        .absence_has_a_meaning();
  };
  using G = GenerateSection;
  using Names = std::vector<std::string>;
  g(&G::path, "path", any(), "the samples whose prompts are answered; empty: data.val_path, else data.path (--evaluate: only the samples that "
    "data.val_split_fraction held out)");
  g(&G::samples, "samples", from_to(0, max_samples), "only the first N samples are answered; 0: all", Names{"limit"});
  g(&G::weights, "weights", one_of_or_containing({"auto", "base"}, "/", "a path, with / in it"),
    "auto: what the run at output.path saved, else the model of model.path; base: the model of model.path; a path (with a /): "
    "that model, adapter or checkpoint", Names{"checkpoint", "ckpt"});
  g(&G::prompt, "prompt", any(), "the prompt of samples that have none, such as the begin of each picture's caption");
  g(&G::max_new_tokens, "max_new_tokens", from_to(1, max_batch), "the maximum number of tokens of an answer", Names{"max_length"});
  g(&G::min_new_tokens, "min_new_tokens", from_to(0, max_batch), "the minimum number of tokens of an answer", Names{"min_length"});
  g(&G::do_sample, "do_sample", words_of<AutoSwitch>(),
    "true: samples tokens, with train.seed; false: takes the most likely token; auto: as generation_config.json says");
  g(&G::temperature, "temperature", above(0, max_factor), "logits are divided by it before sampling");
  g(&G::top_p, "top_p", above(0, 1), "samples from the most likely tokens that together have this probability");
  g(&G::min_p, "min_p", from_to(0, 1), "samples from tokens with at least this share of the highest probability");
  g(&G::top_k, "top_k", from_to(0, max_batch), "samples from the N most likely tokens; 0: from all");
  g(&G::repetition_penalty, "repetition_penalty", above(0, max_factor), "above 1: lowers the probability of tokens that the text already contains");
  g(&G::num_beams, "num_beams", from_to(1, 32), "the number of beams; more than 1: beam search", Names{"beam_size", "beams"});
  g(&G::num_return_sequences, "num_return_sequences", from_to(1, 32), "returns the N best beams as answers");
  g(&G::length_penalty, "length_penalty", from_to(-100, 100), "beam search: above 0 favours long texts, below 0 short texts");
  g(&G::early_stopping, "early_stopping", words_of<EarlyStopping>(), "beam search: the end condition of transformers' generate()");
  g(&G::stop, "stop", any(), "texts at which an answer ends", Names{"stop_strings"});
  g(&G::batch_size, "batch_size", word_or_from_to("auto", 1, kMaxSamplesAtOnce),
    "the number of texts that a rank generates in parallel; auto: as many as are useful and fit", Names{"slots"});
}

void add_evaluate(std::vector<Key>& keys) {
  const auto e = [&](auto member, auto... rest) -> Key& {
    return keys.emplace_back(key(&Config::evaluate, member, "evaluate", rest...)).on_resume_is(OnResume::allowed);
  };
  using E = EvaluateSection;
  e(&E::metrics, "metrics", any(),
    "the scores of generated texts: bleu1 to bleu4, rouge_l, cider, vqa_accuracy, exact_match; empty: those that suit the samples");
  e(&E::samples, "samples", from_to(0, max_samples),
    "the first N validation samples are answered and scored at validations; 0: none",
    std::vector<std::string>{"predict_with_generate"});
  e(&E::ignore_before, "ignore_before", any(),
    "generated text up to this text is not scored: \"</think>\" excludes reasoning",
    std::vector<std::string>{"think_end_token"});
  e(&E::every, "every", from_to(1, max_steps), "texts are generated and scored at every N-th validation and at the last one");
}

void add_trace_and_output(std::vector<Key>& keys) {
  const auto t = [&](auto member, auto... rest) -> Key& {
    return keys.emplace_back(key(&Config::trace, member, "trace", rest...)).on_resume_is(OnResume::allowed);
  };
  using T = TraceSection;
  t(&T::enabled, "enabled", any(), "true: every rank writes trace.rankNNNN.h5 under output.path");
  t(&T::spans, "spans", words_of<SpanTracing>(), "units: records begin and end of the work of every unit");
  t(&T::kernels, "kernels", from_to(0, max_steps),
    "the steps whose kernels are all recorded (CUPTI); they run separately, and slower");
  t(&T::fp8_every, "fp8_every", from_to(0, max_steps),
    "every N steps, the trace records the largest magnitude and the zeros of each fp8 factor; 0: never");
  t(&T::samples, "samples", any(), "true: the trace lists the samples of each step, 24 bytes each");
  t(&T::sample_seconds, "sample_seconds", from_to(0.001, max_factor),
    "the seconds between two samples of GPU utilisation, power and clocks");
  t(&T::on_error, "on_error", words_of<TraceErrorAction>(),
    "action if the trace cannot be written: warn prints a warning and continues without it, stop ends the run");

  const auto o = [&](auto member, auto... rest) -> Key& {
    return keys.emplace_back(key(&Config::output, member, "output", rest...)).on_resume_is(OnResume::allowed);
  };
  using O = OutputSection;
  using Names = std::vector<std::string>;
  o(&O::path, "path", required(), "the directory of this run, for traces and the saved model", Names{"output_dir", "save_dir"})
      .on_resume_is(OnResume::unreported);
  o(&O::overwrite, "overwrite", any(),
    "true replaces another run's results at path (traces, checkpoints, saved model); false refuses such a path",
    Names{"overwrite_output_dir", "exist_ok", "force"}).on_resume_is(OnResume::unreported);
  o(&O::save_model, "save_model", any(),
    "true: writes model/ in Hugging Face's form at the end, or adapter/ in PEFT's form");
  o(&O::save_best, "save_best", any(),
    "true: saves the weights of the best checkpoint (checkpoint.keep_best) instead of the last", Names{"load_best_model_at_end"});
  o(&O::save, "save", words_of<SavedTensors>(), "all: writes every tensor; trained: only the trained ones");
  o(&O::save_merged, "save_merged", any(), "true: also writes model/ with the adapters merged into it",
    Names{"merge", "merge_and_unload"});
  o(&O::save_dtype, "save_dtype",
    words_of<SavedDtype>({{"float32", "f32"}, {"fp32", "f32"}, {"bfloat16", "bf16"}}),
    "the type of all saved tensors; auto: that of the master weights; frozen tensors keep their stored type");
  o(&O::memory_every, "memory_every", from_to(0, max_steps),
    "prints a memory line every N steps, and at steps 0 and 1; 0: never",
    Names{"log_every", "log_every_n_steps"});
  o(&O::progress_seconds, "progress_seconds", from_to(0, 1e300),
    "the seconds between two progress lines if the output is not a terminal");
}

}  // namespace

const std::vector<Key>& config_keys() {
  static const std::vector<Key> keys = [] {
    std::vector<Key> all;
    add_model(all);
    add_adapter(all);
    add_data(all);
    add_train(all);
    add_parallel(all);
    add_checkpoint(all);
    add_generate(all);
    add_evaluate(all);
    add_trace_and_output(all);
    return all;
  }();
  return keys;
}

const std::vector<std::string>& config_sections() {
  static const std::vector<std::string> sections = [] {
    std::vector<std::string> names;
    for (const Key& key : config_keys())
      if (names.empty() || names.back() != key.section) names.push_back(key.section);
    return names;
  }();
  return sections;
}

const Key* find_key(const std::string& section, const std::string& name) {
  for (const Key& key : config_keys())
    if (key.section == section && (key.name == name || (!name.empty() && key.other_name == name))) return &key;
  return nullptr;
}

const Key& key_of(const std::string& full_name) {
  const size_t dot = full_name.find('.');
  const Key* found = dot == std::string::npos ? nullptr : find_key(full_name.substr(0, dot), full_name.substr(dot + 1));
  BLIPFT_CHECK(found, "no key ", full_name);
  return *found;
}

void copy_value(const Key& key, const Config& from, Config& to) {
  Config source = from;                      // fields are of configs that may be changed
  const Field value = key.field(source);
  std::visit(
      [&]<class F>(const F& field) {
        if constexpr (!std::is_pointer_v<F>) field.set(std::get<F>(value));
        else *field = *std::get<F>(value);
      },
      key.field(to));
}

KeyRules rules_of(const std::string& key) {
  const Key& found = key_of(key);
  return {found.on_resume, found.of_each_rank, value_text(found, Config())};
}

}  // namespace blipft
