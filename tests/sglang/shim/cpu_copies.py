"""SGLang's copies between its device and host pools, for pools that are both in
this machine's memory. Names and arguments are those of sgl_kernel.kvcacheio;
layouts: layer_first (lf), page_first (pf), and direct."""
import ctypes

import torch


def _whole(indices):
    return indices.to("cpu", torch.int64)


def _pointers(table):
    return [int(one) for one in table.view(torch.int64).tolist()]


def _rows(src, src_indices, src_stride, dst, dst_indices, dst_stride, size):
    for one, other in zip(src_indices.tolist(), dst_indices.tolist()):
        ctypes.memmove(dst + other * dst_stride, src + one * src_stride, size)


def transfer_kv_direct(src_layers, dst_layers, src_indices, dst_indices,
                       page_size):
    for src, dst in zip(src_layers, dst_layers):
        dst[_whole(dst_indices)] = src[_whole(src_indices)]


def transfer_kv_per_layer_direct_pf_lf(src_ptrs, dst_ptrs, src_indices,
                                       dst_indices, layer_id, page_size):
    one, other = _whole(src_indices), _whole(dst_indices)
    for src, dst in zip(src_ptrs, dst_ptrs):
        dst[other] = src[one // page_size, layer_id, one % page_size].view(
            len(one), *dst.shape[1:])


def transfer_kv_all_layer_direct_lf_pf(src_ptrs, dst_ptrs, src_indices,
                                       dst_indices, page_size):
    one, other = _whole(src_indices), _whole(dst_indices)
    layers = len(src_ptrs) // len(dst_ptrs)
    for part, host in enumerate(dst_ptrs):
        for layer in range(layers):
            host[other // page_size, layer, other % page_size] = src_ptrs[
                part * layers + layer][one].view(len(one), *host.shape[3:])


def transfer_kv_per_layer_mla(src, dst, src_indices, dst_indices, item_size,
                              **_):
    _rows(src.data_ptr(), src_indices, item_size, dst.data_ptr(), dst_indices,
          item_size, item_size)


def transfer_kv_per_layer(src_k, dst_k, src_v, dst_v, src_indices, dst_indices,
                          item_size, **_):
    for src, dst in ((src_k, dst_k), (src_v, dst_v)):
        transfer_kv_per_layer_mla(src, dst, src_indices, dst_indices,
                                  item_size)


def transfer_kv_per_layer_mla_pf_lf(src, dst, src_indices, dst_indices,
                                    layer_id, item_size, src_layout_dim, **_):
    _rows(src.data_ptr() + layer_id * item_size, src_indices, src_layout_dim,
          dst.data_ptr(), dst_indices, item_size, item_size)


def transfer_kv_per_layer_pf_lf(src_k, dst_k, src_v, dst_v, src_indices,
                                dst_indices, layer_id, item_size,
                                src_layout_dim, **_):
    for src, dst in ((src_k, dst_k), (src_v, dst_v)):
        transfer_kv_per_layer_mla_pf_lf(src, dst, src_indices, dst_indices,
                                        layer_id, item_size, src_layout_dim)


def transfer_kv_all_layer_mla(src_layers, dst_layers, src_indices, dst_indices,
                              item_size, num_layers, **_):
    for src, dst in zip(_pointers(src_layers)[:num_layers],
                        _pointers(dst_layers)[:num_layers]):
        _rows(src, src_indices, item_size, dst, dst_indices, item_size,
              item_size)


def transfer_kv_all_layer(src_k_layers, dst_k_layers, src_v_layers,
                          dst_v_layers, src_indices, dst_indices, item_size,
                          num_layers, **_):
    for src, dst in ((src_k_layers, dst_k_layers),
                     (src_v_layers, dst_v_layers)):
        transfer_kv_all_layer_mla(src, dst, src_indices, dst_indices,
                                  item_size, num_layers)


def transfer_kv_all_layer_mla_lf_pf(src_layers, dst, src_indices, dst_indices,
                                    item_size, dst_layout_dim, num_layers,
                                    **_):
    for layer, src in enumerate(_pointers(src_layers)[:num_layers]):
        _rows(src, src_indices, item_size, dst.data_ptr() + layer * item_size,
              dst_indices, dst_layout_dim, item_size)


def transfer_kv_all_layer_lf_pf(src_k_layers, dst_k, src_v_layers, dst_v,
                                src_indices, dst_indices, item_size,
                                dst_layout_dim, num_layers, **_):
    for src, dst in ((src_k_layers, dst_k), (src_v_layers, dst_v)):
        transfer_kv_all_layer_mla_lf_pf(src, dst, src_indices, dst_indices,
                                        item_size, dst_layout_dim, num_layers)


ALL = {name: one for name, one in globals().items()
       if name.startswith("transfer_kv_")}
