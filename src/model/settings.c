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

const cpl_section cpl_model_section   = CPL_SECTION(model);
const cpl_section cpl_erc_section     = CPL_SECTION(erc);
const cpl_section cpl_balance_section = CPL_SECTION(balance);
const cpl_section cpl_z_section       = CPL_SECTION(z);
const cpl_section cpl_orth_section    = CPL_SECTION(orth);
