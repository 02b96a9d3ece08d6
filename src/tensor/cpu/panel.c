/* panel.c - see panel.h: products of F32 numbers. */
#define PANEL_ITEM float
#define PANEL_MADD lanes_madd
#define PANEL_TARGET
#define PANEL_PRODUCT cpl_panel_product
#define PANEL_DOTS    cpl_panel_dots
#include "tensor/cpu/panel.inc"
