/* settings.c - see settings.h */
#include "model/settings.h"

#define CPL_SETTING(field, ...) CPL_SETTING_ROW(model, field, __VA_ARGS__)
static const cpl_setting model_list[] = {
#include "model/model.def"
};
#undef CPL_SETTING

#define CPL_SETTING(field, ...) CPL_SETTING_ROW(erc, field, __VA_ARGS__)
static const cpl_setting erc_list[] = {
#include "model/erc.def"
};
#undef CPL_SETTING

#define CPL_SETTING(field, ...) CPL_SETTING_ROW(balance, field, __VA_ARGS__)
static const cpl_setting balance_list[] = {
#include "model/balance.def"
};
#undef CPL_SETTING

#define CPL_SETTING(field, ...) CPL_SETTING_ROW(z, field, __VA_ARGS__)
static const cpl_setting z_list[] = {
#include "model/z.def"
};
#undef CPL_SETTING

#define CPL_SETTING(field, ...) CPL_SETTING_ROW(orth, field, __VA_ARGS__)
static const cpl_setting orth_list[] = {
#include "model/orth.def"
};
#undef CPL_SETTING

const cpl_section cpl_model_section =
    CPL_SECTION(model, "the shape and the mathematics of the model");
const cpl_section cpl_erc_section     = CPL_SECTION(erc, "the expert-router coupling loss");
const cpl_section cpl_balance_section = CPL_SECTION(balance, "the load-balancing loss");
const cpl_section cpl_z_section       = CPL_SECTION(z, "the router z-loss");
const cpl_section cpl_orth_section =
    CPL_SECTION(orth, "the loss that makes router rows orthogonal");
