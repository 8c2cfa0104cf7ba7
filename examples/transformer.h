/*
 * A small decoder-only transformer: RMSNorm, rotary positions, grouped-query
 * attention over a paged KV cache, SwiGLU. Real arithmetic, random weights.
 *
 * What a token computes depends on the tokens before it and on nothing else:
 * not on how many are computed in one step, nor on where their KV lies. Tokens
 * go through matmul() in aligned groups of four, position p always in lane
 * p % 4, unused lanes idle; every sum runs in one fixed order. So two runs
 * that agree on the KV of a prefix agree on every bit that follows.
 */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    T_LAYERS = 8,
    T_DIM = 256,
    T_HEADS = 8,
    T_KV_HEADS = 4,
    T_HEAD_DIM = 32,
    T_KV_DIM = T_KV_HEADS * T_HEAD_DIM,
    T_FFN = 768,
    T_VOCAB = 4096,
    T_POSITIONS = 4096, /* the longest context */
    T_STEP = 64,        /* tokens computed in one step, at most */
    T_BLOCK = 16,       /* tokens in one block of the KV cache */
    T_LANES = 4,
    T_PANEL = 8, /* columns of a weight matrix that lie together */
    T_ROWS = T_STEP + 2 * T_LANES
};

/* ---- model ---- */

/* Matrices are kept in panels: [column / T_PANEL][row][column % T_PANEL]. */
typedef struct t_layer {
    float *norm_att, *wq, *wk, *wv, *wo;
    float *norm_ffn, *w_gate, *w_up, *w_down;
} t_layer_t;

typedef struct t_model {
    float *weights; /* all of them, in one piece */
    size_t weight_count;
    uint64_t fingerprint; /* of the weights */
    float *embed;         /* [T_VOCAB][T_DIM] */
    t_layer_t layers[T_LAYERS];
    float *norm_out, *unembed;
    float *rope_cos, *rope_sin; /* [T_POSITIONS][T_HEAD_DIM / 2] */
} t_model_t;

/* splitmix64 */
static inline uint64_t t_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline void *t_alloc(size_t bytes)
{
    void *p = NULL;

    if (posix_memalign(&p, 64, (bytes + 63) / 64 * 64) != 0) {
        return NULL;
    }
    memset(p, 0, bytes);
    return p;
}

/* Takes count weights from the piece at *at_p, of this standard deviation
 * around the center. */
static inline float *t_take(float **at_p, size_t count, float center,
                            float deviation, uint64_t *state)
{
    float *w = *at_p;

    for (size_t i = 0; i < count; i++) {
        float unit = (float)(t_random(state) >> 40) / (1 << 23) - 1;

        w[i] = center + unit * deviation * 1.7320508f;
    }
    *at_p += count;
    return w;
}

static inline float *t_take_matrix(float **at_p, size_t in, size_t out,
                                   float gain, uint64_t *state)
{
    return t_take(at_p, in * out, 0, gain / sqrtf((float)in), state);
}

/*
 * The gains are not a matter of taste. Queries and keys are scaled so that
 * attention has preferences without being blind to anything, and what
 * attention brings in is scaled up so that one token among thousands moves the
 * logits by far more than rounding does.
 */
static inline bool t_model_init(t_model_t *m, uint64_t seed)
{
    size_t att = (size_t)T_DIM * (2 * T_DIM + 2 * T_KV_DIM);
    size_t layer = att + (size_t)3 * T_DIM * T_FFN + 2 * T_DIM;
    size_t count = (size_t)2 * T_VOCAB * T_DIM + T_LAYERS * layer + T_DIM;
    size_t half = T_HEAD_DIM / 2;
    float *at = m->weights = t_alloc(count * sizeof(float));

    m->rope_cos = t_alloc(T_POSITIONS * half * sizeof(float));
    m->rope_sin = t_alloc(T_POSITIONS * half * sizeof(float));
    if (at == NULL || m->rope_cos == NULL || m->rope_sin == NULL) {
        return false;
    }
    m->weight_count = count;
    m->embed = t_take(&at, (size_t)T_VOCAB * T_DIM, 0, 1, &seed);
    for (int l = 0; l < T_LAYERS; l++) {
        t_layer_t *y = &m->layers[l];

        y->norm_att = t_take(&at, T_DIM, 1, 0.1f, &seed);
        y->wq = t_take_matrix(&at, T_DIM, T_DIM, 0.7f, &seed);
        y->wk = t_take_matrix(&at, T_DIM, T_KV_DIM, 0.7f, &seed);
        y->wv = t_take_matrix(&at, T_DIM, T_KV_DIM, 1.0f, &seed);
        y->wo = t_take_matrix(&at, T_DIM, T_DIM, 24.0f, &seed);
        y->norm_ffn = t_take(&at, T_DIM, 1, 0.1f, &seed);
        y->w_gate = t_take_matrix(&at, T_DIM, T_FFN, 1.0f, &seed);
        y->w_up = t_take_matrix(&at, T_DIM, T_FFN, 1.0f, &seed);
        y->w_down = t_take_matrix(&at, T_FFN, T_DIM, 1.0f, &seed);
    }
    m->norm_out = t_take(&at, T_DIM, 1, 0.1f, &seed);
    m->unembed = t_take_matrix(&at, T_DIM, T_VOCAB, 3.0f, &seed);
    for (size_t p = 0; p < T_POSITIONS; p++) {
        for (size_t i = 0; i < half; i++) {
            float angle = (float)p * powf(10000, -(float)i / (float)half);

            m->rope_cos[p * half + i] = cosf(angle);
            m->rope_sin[p * half + i] = sinf(angle);
        }
    }
    m->fingerprint = 0xcbf29ce484222325u;
    for (size_t i = 0; i < count; i++) { /* FNV-1a, a word at a time */
        uint32_t word;

        memcpy(&word, &m->weights[i], sizeof(word));
        m->fingerprint = (m->fingerprint ^ word) * 0x100000001b3u;
    }
    return true;
}

/* ---- paged KV cache ---- */

/* Each layer has memory of its own: blocks of keys, then blocks of values.
 * A block is [T_BLOCK][T_KV_DIM]. Block b of the sequence lies in the physical
 * block table[b]; which that is, chance decides. */
typedef struct t_cache {
    float *layers[T_LAYERS];
    uint32_t block_count;
    uint32_t *table; /* the first `used` are in use, the rest is free */
    uint32_t used;
} t_cache_t;

enum { T_BLOCK_FLOATS = T_BLOCK * T_KV_DIM, T_KEYS = 0, T_VALUES = 1 };

static inline bool t_cache_init(t_cache_t *c, uint32_t blocks, uint64_t seed)
{
    c->block_count = blocks;
    c->used = 0;
    c->table = t_alloc(blocks * sizeof(*c->table));
    if (c->table == NULL) {
        return false;
    }
    for (int l = 0; l < T_LAYERS; l++) {
        size_t floats = (size_t)2 * blocks * T_BLOCK_FLOATS;

        c->layers[l] = t_alloc(floats * sizeof(float));
        if (c->layers[l] == NULL) {
            return false;
        }
    }
    for (uint32_t i = 0; i < blocks; i++) { /* a shuffled free list */
        uint32_t j = (uint32_t)(t_random(&seed) % (i + 1));

        c->table[i] = c->table[j];
        c->table[j] = i;
    }
    return true;
}

/* Makes room for so many tokens. */
static inline bool t_cache_grow(t_cache_t *c, uint32_t tokens)
{
    uint32_t blocks = (tokens + T_BLOCK - 1) / T_BLOCK;

    if (blocks > c->block_count) {
        return false;
    }
    c->used = blocks > c->used ? blocks : c->used;
    return true;
}

/* A block of the sequence: keys or values of one layer. */
static inline float *t_cache_block(const t_cache_t *c, int layer, int what,
                                   uint32_t block)
{
    size_t at = (size_t)what * c->block_count + c->table[block];

    return c->layers[layer] + at * T_BLOCK_FLOATS;
}

static inline float *t_cache_token(const t_cache_t *c, int layer, int what,
                                   uint32_t position)
{
    return t_cache_block(c, layer, what, position / T_BLOCK) +
           position % T_BLOCK * T_KV_DIM;
}

/* ---- arithmetic ---- */

typedef float t_vec_t __attribute__((vector_size(16), may_alias));

/* out[r][j] = sum over i of x[r][i] * w[i][j], i ascending, for groups of
 * T_LANES rows. */
static void t_matmul(float *out, const float *x, const float *w, size_t in,
                     size_t columns, size_t groups)
{
    for (size_t j = 0; j < columns; j += T_PANEL, w += in * T_PANEL) {
        const t_vec_t *panel = (const t_vec_t *)w;

        for (size_t g = 0; g < groups; g++) {
            const float *x0 = x + g * T_LANES * in, *x1 = x0 + in;
            const float *x2 = x1 + in, *x3 = x2 + in;
            t_vec_t a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0};
            t_vec_t b0 = {0}, b1 = {0}, b2 = {0}, b3 = {0};

            for (size_t i = 0; i < in; i++) {
                t_vec_t wa = panel[2 * i], wb = panel[2 * i + 1];

                a0 += wa * x0[i];
                b0 += wb * x0[i];
                a1 += wa * x1[i];
                b1 += wb * x1[i];
                a2 += wa * x2[i];
                b2 += wb * x2[i];
                a3 += wa * x3[i];
                b3 += wb * x3[i];
            }
            t_vec_t *to = (t_vec_t *)(out + g * T_LANES * columns + j);
            size_t stride = columns / 4;

            to[0] = a0, to[1] = b0;
            to[stride] = a1, to[stride + 1] = b1;
            to[2 * stride] = a2, to[2 * stride + 1] = b2;
            to[3 * stride] = a3, to[3 * stride + 1] = b3;
        }
    }
}

static void t_rmsnorm(float *out, const float *x, const float *weight)
{
    float sum = 0;

    for (int i = 0; i < T_DIM; i++) {
        sum += x[i] * x[i];
    }
    float scale = 1 / sqrtf(sum / T_DIM + 1e-6f);
    for (int i = 0; i < T_DIM; i++) {
        out[i] = x[i] * scale * weight[i];
    }
}

static void t_rope(const t_model_t *m, float *heads, int count, uint32_t pos)
{
    const size_t half = T_HEAD_DIM / 2;
    const float *cosine = m->rope_cos + pos * half;
    const float *sine = m->rope_sin + pos * half;

    for (int h = 0; h < count; h++, heads += T_HEAD_DIM) {
        for (size_t i = 0; i < half; i++) {
            float a = heads[i], b = heads[i + half];

            heads[i] = a * cosine[i] - b * sine[i];
            heads[i + half] = a * sine[i] + b * cosine[i];
        }
    }
}

static inline float t_dot_head(const float *a, const float *b)
{
    const t_vec_t *x = (const t_vec_t *)a, *y = (const t_vec_t *)b;
    t_vec_t sum = x[0] * y[0];

    for (int i = 1; i < T_HEAD_DIM / 4; i++) {
        sum += x[i] * y[i];
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* One token's attention to itself and all before it, one head. */
static void t_attend(const t_cache_t *c, int layer, uint32_t pos, int head,
                     const float *q, float *out)
{
    const float scale = 1 / sqrtf((float)T_HEAD_DIM);
    size_t kv = (size_t)(head / (T_HEADS / T_KV_HEADS)) * T_HEAD_DIM;
    float score[T_POSITIONS], top = -INFINITY, sum = 0;
    t_vec_t acc[T_HEAD_DIM / 4] = {{0}};

    for (uint32_t p = 0; p <= pos; p++) {
        const float *k = t_cache_token(c, layer, T_KEYS, p) + kv;

        score[p] = t_dot_head(q, k) * scale;
        top = score[p] > top ? score[p] : top;
    }
    for (uint32_t p = 0; p <= pos; p++) {
        score[p] = expf(score[p] - top);
        sum += score[p];
    }
    for (uint32_t p = 0; p <= pos; p++) {
        const float *v = t_cache_token(c, layer, T_VALUES, p) + kv;

        for (int i = 0; i < T_HEAD_DIM / 4; i++) {
            acc[i] += ((const t_vec_t *)v)[i] * score[p];
        }
    }
    for (int i = 0; i < T_HEAD_DIM / 4; i++) {
        ((t_vec_t *)out)[i] = acc[i] / sum;
    }
}

/* ---- one step ---- */

/* Rows of a step: its tokens, each in its lane, with idle rows around. */
typedef struct t_step {
    _Alignas(64) float x[T_ROWS][T_DIM];
    float norm[T_ROWS][T_DIM], q[T_ROWS][T_DIM];
    float k[T_ROWS][T_KV_DIM], v[T_ROWS][T_KV_DIM];
    float att[T_ROWS][T_DIM], out[T_ROWS][T_DIM];
    float gate[T_ROWS][T_FFN], up[T_ROWS][T_FFN];
    float logits[T_LANES][T_VOCAB];
} t_step_t;

static void t_attention(const t_model_t *m, const t_cache_t *c, int layer,
                        t_step_t *s, uint32_t pos, size_t first, size_t count,
                        size_t groups)
{
    const t_layer_t *y = &m->layers[layer];

    t_matmul(s->q[0], s->norm[0], y->wq, T_DIM, T_DIM, groups);
    t_matmul(s->k[0], s->norm[0], y->wk, T_DIM, T_KV_DIM, groups);
    t_matmul(s->v[0], s->norm[0], y->wv, T_DIM, T_KV_DIM, groups);
    for (size_t i = 0; i < count; i++) {
        uint32_t p = pos + (uint32_t)i;
        size_t row = first + i;

        t_rope(m, s->q[row], T_HEADS, p);
        t_rope(m, s->k[row], T_KV_HEADS, p);
        memcpy(t_cache_token(c, layer, T_KEYS, p), s->k[row],
               sizeof(s->k[row]));
        memcpy(t_cache_token(c, layer, T_VALUES, p), s->v[row],
               sizeof(s->v[row]));
    }
    for (size_t i = 0; i < count; i++) {
        for (int h = 0; h < T_HEADS; h++) {
            size_t at = (size_t)h * T_HEAD_DIM;

            t_attend(c, layer, pos + (uint32_t)i, h, s->q[first + i] + at,
                     s->att[first + i] + at);
        }
    }
    t_matmul(s->out[0], s->att[0], y->wo, T_DIM, T_DIM, groups);
}

static void t_mlp(const t_model_t *m, int layer, t_step_t *s, size_t first,
                  size_t count, size_t groups)
{
    const t_layer_t *y = &m->layers[layer];

    t_matmul(s->gate[0], s->norm[0], y->w_gate, T_DIM, T_FFN, groups);
    t_matmul(s->up[0], s->norm[0], y->w_up, T_DIM, T_FFN, groups);
    for (size_t r = first; r < first + count; r++) {
        for (int i = 0; i < T_FFN; i++) {
            float g = s->gate[r][i];

            s->gate[r][i] = g / (1 + expf(-g)) * s->up[r][i];
        }
    }
    t_matmul(s->out[0], s->gate[0], y->w_down, T_FFN, T_DIM, groups);
}

static void t_add_out(t_step_t *s, size_t first, size_t count)
{
    for (size_t r = first; r < first + count; r++) {
        for (int i = 0; i < T_DIM; i++) {
            s->x[r][i] += s->out[r][i];
        }
    }
}

/*
 * Computes up to T_STEP tokens that stand at pos and after, given the KV of
 * all before; writes theirs to the cache, which has room. Gives the logits of
 * the last one if they are wanted: T_VOCAB of them, valid until the next step.
 */
static const float *t_forward(const t_model_t *m, const t_cache_t *c,
                              t_step_t *s, const uint32_t *tokens, uint32_t pos,
                              size_t count, bool want_logits)
{
    size_t first = pos % T_LANES; /* the row of the first token */
    size_t groups = (first + count + T_LANES - 1) / T_LANES;
    size_t last = first + count - 1;

    for (size_t i = 0; i < count; i++) {
        memcpy(s->x[first + i], m->embed + (size_t)tokens[i] * T_DIM,
               sizeof(s->x[0]));
    }
    for (int l = 0; l < T_LAYERS; l++) {
        for (size_t r = first; r <= last; r++) {
            t_rmsnorm(s->norm[r], s->x[r], m->layers[l].norm_att);
        }
        t_attention(m, c, l, s, pos, first, count, groups);
        t_add_out(s, first, count);
        for (size_t r = first; r <= last; r++) {
            t_rmsnorm(s->norm[r], s->x[r], m->layers[l].norm_ffn);
        }
        t_mlp(m, l, s, first, count, groups);
        t_add_out(s, first, count);
    }
    if (!want_logits) {
        return NULL;
    }
    size_t row = last / T_LANES * T_LANES; /* the group it is in */
    t_rmsnorm(s->norm[last], s->x[last], m->norm_out);
    t_matmul(s->logits[0], s->norm[row], m->unembed, T_DIM, T_VOCAB, 1);
    return s->logits[last - row];
}
