#ifndef WARMLANE_ATTENTION_H
#define WARMLANE_ATTENTION_H

#include "team.h"
#include "vector.h"

/* One step's requests. Request i owns the queries query_starts[i] to query_starts[i + 1]; the last of them sits at
 * position context_lens[i] - 1, and its pages are tables[table_starts[i]] and on, in token order. */
typedef struct {
    const int64_t *query_starts, *context_lens, *tables, *table_starts;
    int64_t num_requests, page_size;
} Batch;

/* keys, values: [num_pages, page_size, kv_heads, head dim], with so many floats from one page to the next as the page
 * strides say: a page holds all layers. window: newest tokens a query sees, 0 for all. softcap: 0 for none. query_stride:
 * floats from one token's queries to the next's. */
typedef struct {
    const float *keys, *values;
    int64_t key_page_stride, value_page_stride;
    int64_t heads, kv_heads, key_dim, value_dim, query_stride, window;
    float scaling, softcap;
} AttentionLayer;

/* Memory per thread, and for the results of contexts that several threads share. */
int64_t attention_scratch_floats(const AttentionLayer *layer);
int64_t attention_partial_floats(const AttentionLayer *layer, const Batch *batch);

/* query: [num_tokens, heads, key_dim] by query_stride; out: [num_tokens, heads, value_dim]. Called by every thread; where
 * attention_partial_floats is not 0, all threads meet and call attention_merge. */
void attention_tasks(const AttentionLayer *layer, const Batch *batch, const float *query, float *out, float *scratch,
                     float *partials, Counter *counter);
void attention_merge(const AttentionLayer *layer, const Batch *batch, float *out, const float *partials, Counter *counter);

#endif
