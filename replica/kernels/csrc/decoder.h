#ifndef WARMLANE_DECODER_H
#define WARMLANE_DECODER_H

#include "attention.h"
#include "linear.h"

/* One decoder layer: norm, attention, norm, gated MLP, each added to what went in. NULL leaves a part out.
 * qkv: all queries, then all keys, then all values. cos, sin: [positions, rotary_dim] of this layer's RoPE. */
typedef struct {
    Linear qkv, attention_out, gate_up, mlp_out;
    const float *input_norm, *query_norm, *key_norm, *attention_out_norm, *mlp_norm, *mlp_out_norm;
    const float *cos, *sin;
    AttentionLayer attention;
    int64_t rotary_dim;
    float norm_eps;
} DecoderLayer;

typedef struct {
    const DecoderLayer *layers;
    Linear head;
    const float *final_norm;
    int64_t num_layers, hidden;
    float final_norm_eps;
} Decoder;

/* positions, slots: [num_tokens], where each token stands and where its K/V go (page * page_size + offset).
 * last_rows: [num_last], the tokens whose logits are wanted. */
typedef struct {
    Batch batch;
    const int64_t *positions, *slots, *last_rows;
    int64_t num_tokens, num_last;
} Step;

/* Memory of one step. hidden: [num_tokens, hidden], embeddings in; other: the same size. qkv, attended, inner: one row
 * per token. scratch: thread_floats per thread. partials: decoder_partial_floats. counters: decoder_counter_bytes, on a cache
 * line. */
typedef struct {
    float *hidden, *other, *qkv, *attended, *inner, *scratch, *partials, *logits;
    Counter *counters;
    int64_t thread_floats;
} Workspace;

#endif
